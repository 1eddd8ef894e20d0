const WIDTH = 300;
const HEIGHT = 70;

export interface Line {
  /** Empty if the chart has only one line. */
  name: string;
  values: (number | null)[];
}

interface ChartProps {
  title: string;
  /** What the chart is about, in a few words. */
  about: string;
  lines: Line[];
  most: number;
  show: (value: number) => string;
  /** The text below the chart, next to the largest value. */
  note?: string;
}

/** Values over time as lines, without null values. The last values and the largest one are written out. */
export function Chart({ title, about, lines, most, show, note }: ChartProps) {
  const top = Math.max(0, ...lines.flatMap(({ values }) => values.map((value) => value ?? 0)));
  const last = lines.map(({ values }) => values.findLast((value) => value !== null) ?? null);
  const now = last.map((value) => (value === null ? "–" : show(value)));
  const told = lines.map(({ name }, index) =>
    last[index] === null ? "nothing yet" : `now ${name} ${now[index]}`.replace("  ", " "),
  );
  return (
    <figure class="chart">
      <figcaption>
        <span class="title">{title}</span>
        <span class="note about">{about}</span>
        <span class="values">
          {lines.map(({ name }, index) => (
            <span key={name}>
              {name && (
                <svg class="key" viewBox="0 0 16 6" aria-hidden="true">
                  <line class={`line-${index}`} x1="0" x2="16" y1="3" y2="3" />
                </svg>
              )}
              {name && `${name} `}
              <strong>{now[index]}</strong>
            </span>
          ))}
        </span>
      </figcaption>
      <svg
        class="lines"
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${title}: ${[...new Set(told)].join(", ")}; peak ${show(top)}`}
      >
        <line class="ground" x1="0" x2={WIDTH} y1={HEIGHT - 1} y2={HEIGHT - 1} />
        {lines.map(({ name, values }, index) => (
          <Values key={name} values={values} most={most} top={top} index={index} />
        ))}
      </svg>
      <span class="note">
        {top > 0 && `peak ${show(top)}`}
        {top > 0 && note && ", "}
        {note}
      </span>
    </figure>
  );
}

function Values({ values, most, top, index }: { values: (number | null)[]; most: number; top: number; index: number }) {
  const x = (place: number) => ((place + most - values.length) / Math.max(1, most - 1)) * WIDTH;
  const y = (value: number) => HEIGHT - 2 - (top ? value / top : 0) * (HEIGHT - 6);
  const points = values.flatMap((value, place) => (value === null ? [] : [[x(place).toFixed(1), y(value).toFixed(1)]]));
  if (points.length === 1) return <circle class={`line-${index}`} r="2" cx={points[0]![0]} cy={points[0]![1]} />;
  return points.length ? <polyline class={`line-${index}`} points={points.join(" ")} /> : null;
}

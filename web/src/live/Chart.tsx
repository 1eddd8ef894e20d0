const WIDTH = 300;
const HEIGHT = 70;

/** Values over time as a line; gaps where there is none. The last and the largest one are written. */
export function Chart(props: { title: string; values: (number | null)[]; most: number; show: (value: number) => string }) {
  const { title, values, most, show } = props;
  const known = values.filter((value) => value !== null);
  const top = Math.max(...known, 0);
  const last = known.at(-1);
  const x = (index: number) => ((index + most - values.length) / Math.max(1, most - 1)) * WIDTH;
  const y = (value: number) => HEIGHT - 2 - (top ? value / top : 0) * (HEIGHT - 6);
  const points = values.flatMap((value, index) => (value === null ? [] : [`${x(index).toFixed(1)},${y(value).toFixed(1)}`]));
  return (
    <figure class="chart">
      <figcaption>
        <span>{title}</span>
        <strong>{last === undefined ? "–" : show(last)}</strong>
      </figcaption>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${title}: ${last === undefined ? "nothing yet" : `now ${show(last)}, at most ${show(top)}`}`}
      >
        <line x1="0" x2={WIDTH} y1={HEIGHT - 1} y2={HEIGHT - 1} />
        {points.length > 1 && <polyline points={points.join(" ")} />}
        {points.length === 1 && <circle r="2" cx={points[0]!.split(",")[0]} cy={points[0]!.split(",")[1]} />}
      </svg>
      <span class="note">at most {show(top)}</span>
    </figure>
  );
}

// Reads the lines of one answer, again from its start after a lost connection.
import type { Message } from "../conversations/types";
import { isReachable, lines, ServerError } from "../server/requests";
import type { ChatLine } from "../server/types";
import { type Answer, begunAnswer, withLine } from "./lines";

export type Open = (signal: AbortSignal) => Promise<Response>;

/** Milliseconds for which a lost answer is asked for again. The server drops an answer that no page follows for a minute. */
const PATIENCE = 60_000;
/** The same for a question that the server may not have got. */
const PATIENCE_AT_FIRST = 5_000;
const FIRST_WAIT = 500;
const LONGEST_WAIT = 8_000;
/** Milliseconds without a line after which the page asks whether the server still responds. */
const QUIET = 4_000;
const LONGEST_QUIET = 32_000;
const SHOW_EVERY = 40;

export const UNREACHABLE = "The server cannot be reached.";
const SILENT = "The server cannot be reached: it does not respond.";

export class Reception {
  answer: Answer | undefined;
  private readonly started = performance.now();
  private first: number | undefined;
  private heard = Date.now();
  private hasAnswered = false;
  private isReading = false;
  private quiet = QUIET;
  private problem: string | undefined;
  private isPausing = false;
  private isChecking = false;
  private isDue = false;

  /** show: shows fields of the message while the answer arrives. */
  constructor(
    private readonly message: Message,
    private readonly signal: AbortSignal,
    private readonly show: (fields: Partial<Message>) => void,
  ) {
    this.problem = message.error;
  }

  /** Returns the complete answer. Throws the error that ended it, or ServerError 0 if the server stays away. */
  async run(open: Open, openAgain: Open): Promise<Answer> {
    const watch = setInterval(() => void this.checkSilence(), 1000);
    this.tell(undefined);
    try {
      let wait = FIRST_WAIT;
      for (let next = open; ; next = openAgain) {
        const before = this.heard;
        try {
          return await this.read(await next(this.signal));
        } catch (error) {
          if (this.signal.aborted || !isLost(error, next === openAgain)) throw error;
          const patience = this.hasAnswered ? PATIENCE : PATIENCE_AT_FIRST;
          if (Date.now() - this.heard > patience) throw new ServerError(0, UNREACHABLE);
        }
        this.tell(UNREACHABLE);
        wait = this.heard > before ? FIRST_WAIT : Math.min(2 * wait, LONGEST_WAIT);
        this.isPausing = true;
        await pause(wait, this.signal);
        this.isPausing = false;
      }
    } finally {
      clearInterval(watch);
    }
  }

  private async read(response: Response): Promise<Answer> {
    let answer = begunAnswer(this.message);
    this.isReading = true;
    this.hear();
    try {
      for await (const line of lines<ChatLine>(response)) {
        this.hear();
        this.noteFirst(line);
        answer = withLine(answer, line, this.first);
        this.answer = answer;
        this.showSoon();
      }
    } finally {
      this.isReading = false;
    }
    // A server that shuts down ends its answers without a last line.
    if (!answer.figures) throw new ServerError(0, UNREACHABLE);
    return answer;
  }

  private noteFirst({ message, logprobs }: ChatLine): void {
    const isNew = logprobs !== undefined || message.content !== this.message.prefix;
    if (this.first === undefined && isNew && (message.content || message.thinking))
      this.first = (performance.now() - this.started) / 1000;
  }

  private showSoon(): void {
    if (this.isDue) return;
    this.isDue = true;
    setTimeout(() => {
      this.isDue = false;
      if (!this.signal.aborted && this.isReading) this.show(this.answer!);
    }, SHOW_EVERY);
  }

  private hear(): void {
    this.hasAnswered = true;
    this.heard = Date.now();
    this.quiet = QUIET;
    this.tell(undefined);
  }

  private tell(problem: string | undefined): void {
    if (this.problem !== problem) this.show({ error: problem });
    this.problem = problem;
  }

  /** Long prompts are silent, too, but then the server responds to other requests. */
  private async checkSilence(): Promise<void> {
    const { heard, quiet } = this;
    if (this.isPausing || this.isChecking || Date.now() - heard < quiet) return;
    this.isChecking = true;
    const responds = await isReachable();
    this.isChecking = false;
    if (this.signal.aborted || this.heard !== heard) return;
    if (responds) this.hear();
    this.quiet = responds ? Math.min(2 * quiet, LONGEST_QUIET) : quiet;
    if (!responds) this.tell(SILENT);
  }
}

function isLost(error: unknown, isAgain: boolean): boolean {
  if (!(error instanceof ServerError)) return false;
  // A browser sends a question again by itself if a connection that it had used before breaks: its answer exists (409).
  // A proxy answers with the others while its server starts.
  return error.status === 0 || (isAgain ? [502, 503, 504] : [409]).includes(error.status);
}

/** Waits until a time is over, the network is back, or `signal` aborts. */
function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(end, milliseconds);
    function end() {
      clearTimeout(timer);
      removeEventListener("online", end);
      resolve();
    }
    addEventListener("online", end);
    signal.addEventListener("abort", end, { once: true });
  });
}

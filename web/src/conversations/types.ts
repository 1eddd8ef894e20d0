import type { Call } from "../server/types";

/** Settings of a conversation; what is absent is left to the model and the server. */
export interface Settings {
  system?: string;
  temperature?: number;
  top_k?: number;
  top_p?: number;
  min_p?: number;
  seed?: number;
  num_ctx?: number;
  num_predict?: number;
  think?: boolean | string;
  keep_alive?: string;
  /** Alternatives that are asked for with each token; absent for no log-probabilities. */
  alternatives?: number;
  schema?: string;
  tools?: string;
  /** Addresses of MCP servers whose tools the model may call. */
  mcp?: string[];
}

/** A tool of an MCP server, under the server's own name for it. */
export interface RemoteTool {
  server: string;
  tool: string;
}

export interface TextFile {
  name: string;
  text: string;
}

/** A token with its natural log-probability; `bytes` where its text alone is no whole UTF-8. */
export interface Token {
  text: string;
  logprob: number;
  bytes?: number[];
  others?: Token[];
}

/** Counts and times of an answer; seconds and tokens. */
export interface Figures {
  firstSeconds?: number;
  rate?: number;
  promptRate?: number;
  waitSeconds?: number;
  proposedTokens?: number;
  acceptedTokens?: number;
  context?: number;
  promptTokens: number;
  answerTokens: number;
  cachedTokens: number;
  cachedByTier?: Record<string, number>;
  droppedTokens: number;
  shiftedTokens: number;
  loadSeconds: number;
  reason: string;
}

export interface Message {
  id: string;
  parent: string | null;
  role: "user" | "assistant" | "tool";
  content: string;
  created: number;
  thinking?: string;
  images?: string[];
  files?: TextFile[];
  calls?: Call[];
  /** Where the called tools are that are on MCP servers, by the names that the model calls them by. */
  remote?: Record<string, RemoteTool>;
  toolName?: string;
  model?: string;
  figures?: Figures;
  error?: string;
  /** The id by which the server gives this answer again; only while it comes. */
  answerId?: string;
  /** The text that this answer was made to begin with, and how many of its tokens came with it. */
  prefix?: string;
  prefixTokens?: number;
  /** What an answer with thoughts began with that was continued as a turn. */
  begun?: string;
  /** All that was sampled, thoughts and tags too, where log-probabilities were asked for. */
  tokens?: Token[];
}

/** A tree of messages; `leaf` is the last one of the branch that is shown. */
export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  model: string;
  settings: Settings;
  messages: Record<string, Message>;
  leaf: string | null;
}

// Requests and replies of the server's native API; docs/server.md describes the fields.

export interface Call {
  id?: string;
  function: { name: string; arguments: Record<string, unknown> };
}

export interface TokenScore {
  token: string;
  logprob: number;
  bytes: number[];
  top_logprobs?: TokenScore[];
}

export interface ChatLine {
  message: { role: string; content: string; thinking?: string; tool_calls?: Call[] };
  done: boolean;
  done_reason?: string;
  total_duration?: number;
  load_duration?: number;
  prompt_eval_count?: number;
  prompt_eval_duration?: number;
  eval_count?: number;
  eval_duration?: number;
  prompt_cached_count?: number;
  cached_tokens_by_tier?: Record<string, number>;
  prompt_dropped_count?: number;
  shifted_count?: number;
  proposed_count?: number;
  accepted_count?: number;
  logprobs?: TokenScore[];
  context_length?: number;
}

export interface ListedModel {
  name: string;
  digest: string;
  size: number;
  modified_at: string;
  /** `context_length`: tokens that the model was made for. */
  details: { family: string; parameter_size: string; quantization_level: string; context_length?: number };
  capabilities: string[];
  /** True for a model that is a part of chaski and cannot be deleted. */
  bundled?: boolean;
  /** Bytes of the disk that its deletion frees. */
  freed_bytes?: number;
}

/** A well-known model to pull, with its download and its estimated memory in bytes. */
export interface SuggestedModel {
  name: string;
  title: string;
  parameters: string;
  quantization: string;
  size: number;
  memory: number;
  capabilities: string[];
  license: string;
  good_for: string;
  /** Absent if the server does not know its memory. */
  fits?: boolean;
  is_stored: boolean;
}

/** The list of `/api/suggestions`, its month as YYYY-MM, and the free bytes of each device. */
export interface Suggestions {
  date: string;
  available: Record<string, number>;
  models: SuggestedModel[];
}

export interface RunningModel {
  name: string;
  size: number;
  devices: Record<string, number>;
  context_length: number;
  engine: string;
  parallel: number;
  users: number;
  waiting: number;
  expires_at: string;
  prefix_cache?: Record<string, { blocks: number; tokens: number; bytes: number; max_bytes: number }>;
}

/** A line of `/api/live`: the current activity of the server and its models. */
export interface LiveFigures {
  server: {
    uptime_seconds: number;
    models_bytes: number;
    waiting_for_load: number;
    first_tokens: number;
    first_token_seconds: number;
  };
  models: LiveModel[];
}

/** What a layer whose experts do not all fit into memory has requested so far, in matrices of experts. */
export interface LayerExperts {
  layer: number;
  requests: number;
  hits: number;
  bytes_read: number;
  slots: number;
  matrices: number;
  gpu_hits: number;
  gpu_slots: number;
}

export interface LiveModel {
  name: string;
  engine: string;
  parallel: number;
  context_length: number;
  memory: { total: number };
  running: number;
  waiting: number;
  prefix_cache: { tier: string; blocks: number; tokens: number; bytes: number; max_bytes: number }[];
  experts?: LayerExperts[];
  prompt_tokens_per_second?: number;
  generated_tokens_per_second?: number;
  cached_tokens_by_tier?: { cells: number; memory: number; disk: number };
  dropped_tokens?: number;
  proposed_tokens?: number;
  accepted_tokens?: number;
  sequences?: { id: number; state: string; generated_tokens: number; replica?: string }[];
  replicas?: LiveReplica[];
  waiting_for_replica?: number;
}

/** A replica of a model that several machines compute. */
export interface LiveReplica {
  name: string;
  node: string;
  places: number;
  answers: number;
  is_leaving: boolean;
  shards: [node: string, process: number][];
}

export interface ShownModel {
  capabilities: string[];
  details: { family: string; parameter_size: string; quantization_level: string };
  model_info: Record<string, unknown>;
  parameters?: string;
  system?: string;
  license?: string;
  template?: string;
  adapters?: { name: string; rank: number; alpha: number }[];
  engine: string;
  engine_reason?: string;
  modified_at: string;
}

export interface PullLine {
  status: string;
  digest?: string;
  total?: number;
  completed?: number;
}

/** The bytes of a model on a device by purpose, and the bytes available there. */
export interface DeviceNeeds {
  weights: number;
  shared: number;
  in_files: number;
  caches: number;
  plans: number;
  draft: number;
  adapters: number;
  needed: number;
  available: number;
}

export interface MemoryEstimate {
  num_ctx: number;
  parallel: number;
  fits: boolean;
  unloads: boolean;
  devices: Record<string, DeviceNeeds>;
  caches: { kind: string; layers: number; cells: number; bytes: number }[];
  prefix_cache: number;
  freeable: number;
  fitting?: { num_ctx: number; parallel: number };
}

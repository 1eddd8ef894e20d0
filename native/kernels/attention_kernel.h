// The attention, storage, recurrence and adapter kernels of one instruction set; ops.h defines their results.
#pragma once

#include "ops.h"

namespace chaski::CHASKI_ISA {

void rope(const float* x, const float* cos, const float* sin, std::int64_t heads, std::int64_t size,
          std::int64_t pairs, bool neox, float* y);

void hadamard(const float* x, std::int64_t count, std::int64_t block, float* y);

void store_cells(const float* x, const KVStorage& storage, const std::int32_t* cells, std::int64_t count,
                 float* scratch);
void load_cell(const KVStorage& storage, std::int64_t cell, float* y, float* scratch);
void copy_cells(const KVStorage& from, const std::int32_t* sources, const KVStorage& to,
                const std::int32_t* targets, std::int64_t count, float* scratch);
void rotate_cell(const KVStorage& storage, std::int64_t cell, const float* cos, const float* sin,
                 std::int64_t pairs, bool neox, std::int64_t block, float* scratch);

std::size_t attention_scratch(const Attention& job, std::int64_t rows);
void attention(const Attention& job, Tile tile, std::int64_t kv_head, std::byte* scratch);
void attention_chunk(const Attention& job, Tile tile, std::int64_t kv_head, std::int64_t chunk, float* part,
                     std::byte* scratch);
void attention_join(const Attention& job, Tile tile, std::int64_t kv_head, std::int64_t chunks,
                    const float* parts, std::byte* scratch);
void index_scores(const Attention& heads, const float* weights, float least, std::int64_t chunk,
                  float* scores, std::byte* scratch);

void lora_down(const Lora& pair, const LoraRow* rows, std::int64_t n, const std::byte* next);
void lora_up(const Lora& pair, std::int64_t panel_begin, std::int64_t panel_end, const LoraRow* rows,
             std::int64_t n, const std::byte* next);

std::size_t gated_delta_scratch(const GatedDelta& job);
void gated_delta(const GatedDelta& job, const ChunkSegment& segment, std::int64_t key_head,
                 std::int64_t begin, std::int64_t end, std::byte* scratch);

void selective_scan(const SelectiveScan& job, const Segment& segment, std::int64_t begin, std::int64_t end);

void generalized_delta(const GeneralizedDelta& job, const Segment& segment, std::int64_t head,
                       std::int64_t begin, std::int64_t end);

}  // namespace chaski::CHASKI_ISA

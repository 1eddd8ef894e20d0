// The choice of the cells that attention reads, by the scores of an indexer (ops.h).
//
// Positions are cut into blocks of `block` from position 0 on, and the key of a block is that of its last
// position; usually a block is one position. A token that sees more than `count` whole blocks gets the
// `count` blocks with the highest scores, and of equal scores the lowest positions; a score that is no number
// counts as minus infinity. Other tokens get every block. The positions after the last whole block are always
// chosen. The chosen cells are in order of position.
//
// With `local` blocks, a block has the highest score of its positions, the positions after the last whole
// block are one, too, and the last `local` blocks are the first that are chosen.
#pragma once

#include <atomic>

#include "attention.h"
#include "kinds.h"
#include "ops.h"

namespace chaski {

struct KeyChoice {
    std::int64_t count;  // of blocks
    std::int64_t block;
    std::int64_t local;

    // The most cells of a token.
    std::int64_t width() const { return count * block + (local > 0 ? 0 : block - 1); }
    // The blocks among `length` cells, of which `count` are chosen.
    std::int64_t blocks(std::int64_t length) const {
        return local > 0 ? (length + block - 1) / block : length / block;
    }
    // The chosen cells of a token that sees `length` of them.
    std::int64_t chosen(std::int64_t length) const {
        const std::int64_t all = blocks(length);
        return length - (all > count ? (all - count) * block : 0);
    }
    // The positions that share a score.
    std::int64_t scored() const { return local > 0 ? 1 : block; }
};

// An item is a token. If these are too few for the threads, an item is one chunk of a token's blocks, and the
// thread that finishes the last chunk chooses. The bits are the same.
class ChooseStep final : public Step {
   public:
    // `longest` is the largest number of entries of a history. `parts` has room for as many floats, or is
    // null if batches are not split.
    ChooseStep(const Ops& ops, int tokens_dim, int history_dim, const Indexer& job, KeyChoice choice,
               std::int64_t longest, float* parts, int threads, std::int32_t* chosen);
    void prepare(const Sizes& sizes) override;
    std::int64_t items(const Sizes& sizes) const override;
    std::int64_t piece(const Sizes&, std::int64_t left, int threads) const override {
        return is_split_ ? shrinking_piece(left, threads, 1) : 1;
    }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte* scratch) const override;
    std::size_t scratch_bytes() const override;

   private:
    // A thread's scratch memory: that of attention, a list of cells, scores, and a copy of them.
    struct Room {
        std::byte* attention;
        std::int32_t* cells;
        float* scores;
        float* copy;
    };
    Room room(std::byte* scratch) const;
    std::int64_t seen(std::int64_t token) const { return job_.spans[token].end - job_.spans[token].begin; }
    std::int64_t blocks(std::int64_t token) const { return choice_.blocks(seen(token)); }
    std::int64_t scores(std::int64_t token) const { return seen(token) / choice_.scored(); }
    // The chunks of a token's scores; 1 if all of its blocks are chosen.
    std::int64_t chunks(std::int64_t token) const;
    void score(std::int64_t token, std::int64_t begin, std::int64_t end, float* scores,
               const Room& room) const;
    void run_chunk(std::int64_t item, const Room& room) const;
    void choose(std::int64_t token, float* scores, float* copy) const;
    void pool(std::int64_t token, float* scores) const;

    const Ops& ops_;
    const int tokens_dim_;
    const int history_dim_;
    const Indexer job_;
    const KeyChoice choice_;
    const std::int64_t longest_;
    float* parts_;
    const int threads_;
    std::int32_t* chosen_;  // [token][width]
    const std::size_t attention_bytes_;
    bool is_split_ = false;
    std::vector<std::int64_t> items_;                         // before each token, and last the total
    std::vector<std::int64_t> places_;                        // of each token's scores in `parts`
    mutable std::vector<std::atomic<std::int64_t>> missing_;  // chunks of each token
};

// Makes the spans of tokens in the chosen cells, from those in the whole history.
class ChosenSpansStep final : public SetupStep {
   public:
    ChosenSpansStep(int tokens_dim, const Span* spans, KeyChoice choice, std::int64_t max_tokens,
                    std::shared_ptr<Tiles> tiles);
    void prepare(const Sizes& sizes) override;

   private:
    const int tokens_dim_;
    const Span* spans_;
    const KeyChoice choice_;
    std::shared_ptr<Tiles> tiles_;
};

}  // namespace chaski

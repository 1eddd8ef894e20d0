#include "expert_store.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "float_environment.h"
#include "logarithm.h"
#include "weights.h"

namespace chaski {

namespace {

// The C library's log2 and exp2 of doubles would need glibc 2.29.
double log2_of(double x) { return natural_logarithm(x) * std::numbers::log2e; }

// log2(2^a + 2^b), where `a` may be minus infinity.
double log_sum(double a, double b) {
    const double high = std::max(a, b), low = std::min(a, b);
    return high + log2_of(2.0 + std::expm1((low - high) * std::numbers::ln2));
}

// The panels that a reader takes at once: whole groups of interleaved ones.
std::int64_t panels_at_once(const ExpertStore::Stack& stack) {
    const std::int64_t group = interleaved_panels(stack.type);
    return std::max<std::int64_t>(1, DirectFile::kLongest / (group * kLanes * stack.stride)) * group;
}

}  // namespace

ExpertStore::Part::Part(Stack of)
    : stack(std::move(of)),
      slot_bytes(align_up(matrix_bytes(stack.type, stack.rows, stack.k))),
      experts(stack.offsets.size()) {}

int ExpertStore::add(Stack stack) {
    parts_.push_back(std::make_unique<Part>(std::move(stack)));
    parts_.back()->order.reserve(parts_.back()->experts.size());
    return static_cast<int>(parts_.size()) - 1;
}

std::int64_t ExpertStore::bytes_with(std::int64_t slots) const {
    std::int64_t bytes = 0;
    for (const auto& part : parts_) bytes += std::min(slots, part->num_experts()) * part->slot_bytes;
    return bytes;
}

// Every stack gets the same share of its experts. What is left goes to the first layers, one slot each.
std::vector<std::int64_t> ExpertStore::slots_within(std::int64_t bytes) const {
    const double share = std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total_bytes()));
    std::vector<std::int64_t> slots;
    std::int64_t left = bytes;
    for (const auto& part : parts_) {
        const std::int64_t count = part->num_experts();
        const auto fitting = static_cast<std::int64_t>(share * static_cast<double>(count));
        slots.push_back(std::clamp(fitting, std::min(kLeastSlots, count), count));
        left -= slots.back() * part->slot_bytes;
    }
    for (std::size_t first = 0, end; first < parts_.size(); first = end) {
        std::int64_t more = 0;
        for (end = first; end < parts_.size() && parts_[end]->stack.layer == parts_[first]->stack.layer;) {
            const Part& part = *parts_[end++];
            more += slots[end - 1] < part.num_experts() ? part.slot_bytes : 0;
        }
        if (more > left) continue;
        left -= more;
        for (std::size_t i = first; i < end; ++i) slots[i] = std::min(slots[i] + 1, parts_[i]->num_experts());
    }
    return slots;
}

void ExpertStore::start(std::int64_t bytes, int readers, std::chrono::milliseconds patience) {
    patience_ = patience;
    const std::vector<std::int64_t> slots = slots_within(bytes);
    std::size_t size = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) size += slots[i] * parts_[i]->slot_bytes;
    memory_ = std::make_unique<Region>(size);
    std::byte* place = memory_->data();
    std::int64_t room = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
        Part& part = *parts_[i];
        part.memory = place;
        part.slots = slots[i];
        part.owners.assign(slots[i], kNone);
        place += slots[i] * part.slot_bytes;
        const std::int64_t stored =
            std::min(panels_at_once(part.stack), num_panels(part.stack.rows)) * kLanes * part.stack.stride;
        room = std::max(room, DirectFile::room_bytes(stored));
    }
    if (2 * room > std::int64_t{kHugePage}) room = align_up(room, kHugePage);
    rooms_ = std::make_unique<Region>(room * readers);
    for (int i = 0; i < readers; ++i) {
        auto* own = reinterpret_cast<std::uint8_t*>(rooms_->data() + i * room);
        readers_.emplace_back([this, own] { work(own); });
    }
}

void ExpertStore::stop() {
    {
        const std::lock_guard lock(mutex_);
        is_stopping_ = true;
    }
    work_.notify_all();
    complete_.notify_all();
    for (std::thread& reader : readers_) reader.join();
    readers_.clear();
}

void ExpertStore::resize(std::int64_t bytes) {
    const std::vector<std::int64_t> slots = slots_within(bytes);
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
        Part& part = *parts_[i];
        part.slots = std::min(slots[i], std::ssize(part.owners));
        for (Expert& expert : part.experts) drop_if_surplus(part, expert);
    }
    work_.notify_all();
}

void ExpertStore::request(std::span<const int> stacks, std::span<const ChosenExpert> chosen,
                          std::int64_t tokens) {
    const std::lock_guard lock(mutex_);
    for (const int number : stacks) {
        note(*parts_[number], chosen, tokens);
        requested_.push_back(number);
    }
    work_.notify_one();
}

void ExpertStore::note(Part& part, std::span<const ChosenExpert> chosen, std::int64_t tokens) {
    part.tokens += tokens;
    const double age = static_cast<double>(part.tokens) / kHalfLife;
    std::vector<std::int32_t>& order = part.order;
    order.clear();
    // Those in memory, then those that are being read, then the others, in the order of reading.
    const auto add_if = [&](auto fits) {
        for (std::size_t i = 0; i < chosen.size(); ++i) {
            if (fits(part.experts[chosen[i].expert])) order.push_back(static_cast<std::int32_t>(i));
        }
    };
    add_if([](const Expert& expert) { return expert.slot != kNone && expert.unread == 0; });
    part.counts.hits += std::ssize(order);
    add_if([](const Expert& expert) { return expert.unread > 0; });
    const std::ptrdiff_t coming = std::ssize(order);
    add_if([](const Expert& expert) { return expert.slot == kNone; });
    for (const std::int32_t i : std::span(order).subspan(coming)) part.wanted.push_back(chosen[i].expert);
    part.counts.requests += std::ssize(chosen);
    for (const auto [number, rows] : chosen) {
        Expert& expert = part.experts[number];
        expert.priority = log_sum(expert.priority, age + log2_of(static_cast<double>(rows)));
        expert.left.store(num_panels(part.stack.rows), std::memory_order_relaxed);
        expert.is_needed = true;
        if (expert.unread == 0) expert.error = 0;  // it is tried again
    }
}

const std::uint8_t* ExpertStore::panels(int stack, std::int32_t number) {
    Expert& expert = parts_[stack]->experts[number];
    if (const std::uint8_t* panels = expert.panels.load(std::memory_order_acquire)) return panels;
    std::unique_lock lock(mutex_);
    const auto is_there = [&] { return expert.panels.load(std::memory_order_relaxed) != nullptr; };
    const auto is_lost = [&] { return expert.error != 0 && expert.unread == 0; };
    complete_.wait(lock, [&] { return is_there() || is_lost() || is_stopping_; });
    return expert.panels.load(std::memory_order_relaxed);
}

void ExpertStore::miss(int stack, std::int32_t number, int dim, std::int64_t row) {
    const std::lock_guard lock(mutex_);
    if (!missing_) missing_ = {stack, parts_[stack]->experts[number].error, {}};
    missing_->rows.emplace(dim, row);
}

void ExpertStore::computed(int stack, std::int32_t number, std::int64_t panels) {
    Part& part = *parts_[stack];
    Expert& expert = part.experts[number];
    if (expert.left.fetch_sub(panels, std::memory_order_acq_rel) > panels) return;
    const std::lock_guard lock(mutex_);
    expert.is_needed = false;
    drop_if_surplus(part, expert);
    if (!part.wanted.empty()) work_.notify_one();
}

std::optional<MissingRows> ExpertStore::take_missing() {
    const std::lock_guard lock(mutex_);
    patience_end_.reset();
    return std::exchange(missing_, std::nullopt);
}

std::int64_t ExpertStore::filled_bytes() const {
    const std::lock_guard lock(mutex_);
    std::int64_t bytes = 0;
    for (const auto& part : parts_) {
        const auto& owners = part->owners;
        const auto filled = std::ssize(owners) - std::count(owners.begin(), owners.end(), kNone);
        bytes += filled * part->slot_bytes;
    }
    return bytes;
}

StackCounts ExpertStore::counts(int stack) const {
    const std::lock_guard lock(mutex_);
    StackCounts counts = parts_[stack]->counts;
    counts.slots = parts_[stack]->slots;
    return counts;
}

bool ExpertStore::next(Piece& piece) {
    if (current_.part == nullptr && !begin_again() && !begin_wanted() && !begin_filling()) return false;
    piece = current_;
    piece.end = std::min(current_.end, piece.begin + panels_at_once(piece.part->stack));
    current_.begin = piece.end;
    if (current_.begin == current_.end) current_.part = nullptr;
    return true;
}

bool ExpertStore::begin_again() {
    if (again_.empty()) return false;
    current_ = again_.front();
    again_.pop_front();
    return true;
}

bool ExpertStore::begin_wanted() {
    std::erase_if(requested_, [&](int number) { return parts_[number]->wanted.empty(); });
    for (const int number : requested_) {
        Part& part = *parts_[number];
        const std::int64_t slot = free_slot(part);
        if (slot == kNone) continue;
        begin(part, part.wanted.front(), slot);
        part.wanted.pop_front();
        return true;
    }
    return false;
}

bool ExpertStore::begin_filling() {
    if (filled_ != nullptr && filled_->unread > 0) return false;
    for (std::size_t tries = 0; tries < parts_.size(); ++tries) {
        Part& part = *parts_[filling_];
        const auto empty = std::find(part.owners.begin(), part.owners.begin() + part.slots, kNone);
        if (part.wanted.empty() && empty != part.owners.begin() + part.slots) {
            const Expert* best = nullptr;
            for (const Expert& expert : part.experts) {
                if (expert.slot != kNone || expert.error != 0) continue;
                if (best == nullptr || best->priority < expert.priority) best = &expert;
            }
            if (best != nullptr) {
                begin(part, static_cast<std::int32_t>(best - part.experts.data()),
                      empty - part.owners.begin());
                filled_ = best;
                return true;
            }
        }
        filling_ = (filling_ + 1) % parts_.size();
    }
    return false;
}

void ExpertStore::begin(Part& part, std::int32_t number, std::int64_t slot) {
    Expert& expert = part.experts[number];
    part.owners[slot] = number;
    expert.slot = static_cast<std::int32_t>(slot);
    expert.unread = num_panels(part.stack.rows);
    current_ = {&part, &expert, 0, expert.unread};
}

// An empty slot, or that of the expert with the lowest priority, which leaves it.
std::int64_t ExpertStore::free_slot(Part& part) {
    Expert* worst = nullptr;
    for (std::int64_t slot = 0; slot < part.slots; ++slot) {
        if (part.owners[slot] == kNone) return slot;
        Expert& owner = part.experts[part.owners[slot]];
        if (owner.is_needed || owner.unread > 0) continue;
        if (worst == nullptr || owner.priority < worst->priority) worst = &owner;
    }
    if (worst == nullptr) return kNone;
    const std::int64_t slot = worst->slot;
    leave(part, *worst);
    return slot;
}

void ExpertStore::leave(Part& part, Expert& expert) {
    expert.panels.store(nullptr, std::memory_order_relaxed);
    part.owners[expert.slot] = kNone;
    expert.slot = kNone;
}

void ExpertStore::drop_if_surplus(Part& part, Expert& expert) {
    if (expert.slot < part.slots || expert.is_needed || expert.unread > 0) return;
    std::byte* memory = part.memory + expert.slot * part.slot_bytes;
    leave(part, expert);
    give_back(memory,
              static_cast<std::size_t>(part.slot_bytes));  // pages at both ends may contain other slots
}

void ExpertStore::finish(const Piece& piece, int error) {
    Part& part = *piece.part;
    Expert& expert = *piece.expert;
    expert.unread -= piece.end - piece.begin;
    if (error != 0) {
        expert.error = error;
    } else {
        part.counts.bytes_read += (piece.end - piece.begin) * kLanes * part.stack.stride;
    }
    if (expert.unread > 0) return;
    if (expert.error == 0) {
        const std::byte* panels = part.memory + expert.slot * part.slot_bytes;
        expert.panels.store(reinterpret_cast<const std::uint8_t*>(panels), std::memory_order_release);
        drop_if_surplus(part, expert);
    } else if (expert.is_needed && is_patient()) {
        // It keeps its slot: the others may belong to experts that are computed later.
        expert.error = 0;
        expert.unread = num_panels(part.stack.rows);
        again_.push_back({&part, &expert, 0, expert.unread});
        return;
    } else {
        leave(part, expert);
    }
    complete_.notify_all();
}

// True while the batch tries failed reads again.
bool ExpertStore::is_patient() {
    const auto now = std::chrono::steady_clock::now();
    if (!patience_end_) patience_end_ = now + patience_;
    return now < *patience_end_;
}

void ExpertStore::work(std::uint8_t* room) {
    const UsualFloats usual;
    std::unique_lock lock(mutex_);
    while (!is_stopping_) {
        Piece piece;
        if (!next(piece)) {
            work_.wait(lock);
            continue;
        }
        work_.notify_one();  // there may be more for another reader
        lock.unlock();
        const int error = read(piece, room);
        // Not a timed wait for the end, which would need a newer C library than the wheel asks for.
        if (error != 0) std::this_thread::sleep_for(kPause);
        lock.lock();
        finish(piece, error);
    }
}

int ExpertStore::read(const Piece& piece, std::uint8_t* room) const {
    const Stack& stack = piece.part->stack;
    const std::int64_t expert = piece.expert - piece.part->experts.data(), row = piece.begin * kLanes;
    const std::int64_t count = std::min(piece.end * kLanes, stack.rows) - row;
    const std::int64_t bytes = (count - 1) * stack.stride + row_bytes(stack.type, stack.k);
    int error = 0;
    std::uint8_t* rows = stack.file->read(stack.offsets[expert] + row * stack.stride, bytes, room, error);
    if (rows == nullptr) return error;
    auto* panels = reinterpret_cast<std::uint8_t*>(piece.part->memory) +
                   piece.expert->slot * piece.part->slot_bytes +
                   panel_start(stack.type, stack.k, piece.begin);
    pack_rows(kernels_, {stack.type, count, stack.k, nullptr}, stack.stride, stack.is_interleaved, rows,
              panels);
    return 0;
}

}  // namespace chaski

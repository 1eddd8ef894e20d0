#include "weight_stream.h"

#include <algorithm>
#include <utility>

namespace chaski {

void WeightStream::start(std::int64_t bytes, std::int64_t longest, int readers) {
    slot_bytes_ = static_cast<std::int64_t>(
        align_up(static_cast<std::size_t>(DirectFile::room_bytes(longest)), kHugePage));
    // Some slots may wait for late threads (see has_passed), and each thread computes with a piece. The
    // others are enough for the readers and for a piece that each thread takes next.
    const std::int64_t slots = std::max<std::int64_t>(bytes / slot_bytes_, 3 * threads_ + readers + 1);
    memory_ = std::make_unique<Region>(static_cast<std::size_t>(slots * slot_bytes_));
    memory_->touch();
    owners_.assign(slots, kNone);
    for (int i = 0; i < readers; ++i) readers_.emplace_back([this] { work(); });
}

void WeightStream::set(std::vector<Piece> pieces) {
    std::unique_lock lock(mutex_);
    window_ = 0;
    complete_.wait(lock, [&] { return reading_ == 0; });
    pieces_ = std::move(pieces);
    places_.assign(pieces_.size(), {});
    std::fill(owners_.begin(), owners_.end(), kNone);
    next_ = latest_ = 0;
    const std::int64_t slots = std::ssize(owners_), count = std::ssize(pieces_);
    // With half of all pieces or less, those before a piece can be told from those behind it.
    window_ = count <= slots ? count : std::min(slots - 2 * threads_ - 1, count / 2);
    work_.notify_all();
}

void WeightStream::stop() {
    {
        const std::lock_guard lock(mutex_);
        is_stopping_ = true;
    }
    work_.notify_all();
    complete_.notify_all();
    for (std::thread& reader : readers_) reader.join();
    readers_.clear();
}

// The number of pieces from one to another; a pass follows a pass.
std::int64_t WeightStream::from(std::int64_t begin, std::int64_t end) const {
    return end >= begin ? end - begin : end - begin + std::ssize(pieces_);
}

bool WeightStream::reads_soon(std::int64_t number) const { return from(next_, number) < window_; }

// Other threads may still need the last pieces behind the foremost one: each thread takes one at a time.
bool WeightStream::has_passed(std::int64_t number) const {
    return from(number, latest_) > threads_ && from(latest_, number) >= window_;
}

const std::uint8_t* WeightStream::take(std::int64_t number) {
    std::unique_lock lock(mutex_);
    Place& place = places_[number];
    ++place.takers;
    if (from(latest_, number) < std::ssize(pieces_) / 2) latest_ = number;
    while (place.rows == nullptr) {
        const bool is_coming = place.slot != kNone || reads_soon(number);
        if (!is_coming && from(number, next_) > window_ + threads_) {
            next_ = latest_ = number;  // this pass has left out what is between
            continue;
        }
        if (!is_coming || place.is_unreadable || is_stopping_) {
            place.is_unreadable = false;
            --place.takers;
            return nullptr;
        }
        work_.notify_all();
        complete_.wait(lock);
    }
    work_.notify_one();
    return place.rows;
}

void WeightStream::release(std::int64_t number, std::int64_t panels) {
    const std::lock_guard lock(mutex_);
    Place& place = places_[number];
    place.left -= panels;
    if (--place.takers > 0 || place.left > 0 || std::ssize(pieces_) <= std::ssize(owners_)) return;
    empty(place.slot);
    work_.notify_one();
}

void WeightStream::empty(std::int64_t slot) {
    Place& place = places_[owners_[slot]];
    place.slot = kNone;
    place.rows = nullptr;
    owners_[slot] = kNone;
}

// Moves to the next piece that has to be read; false if none has to be read now.
bool WeightStream::find_next() {
    const std::int64_t count = std::ssize(pieces_);
    for (std::int64_t tries = 0; tries < count; ++tries) {
        if (from(latest_, next_) >= window_ && from(next_, latest_) >= window_) return false;
        if (places_[next_].slot == kNone && !places_[next_].is_unreadable) return true;
        next_ = (next_ + 1) % count;
    }
    return false;
}

// An empty slot, or one that this pass does not need any more, or kNone.
std::int64_t WeightStream::free_slot() {
    std::int64_t passed = kNone;
    for (std::int64_t slot = 0; slot < std::ssize(owners_); ++slot) {
        if (owners_[slot] == kNone) return slot;
        const Place& owner = places_[owners_[slot]];
        if (owner.takers == 0 && owner.rows != nullptr && has_passed(owners_[slot])) passed = slot;
    }
    if (passed != kNone) empty(passed);
    return passed;
}

void WeightStream::work() {
    std::unique_lock lock(mutex_);
    while (!is_stopping_) {
        const std::int64_t slot = find_next() ? free_slot() : kNone;
        if (slot == kNone) {
            work_.wait(lock);
            continue;
        }
        const std::int64_t number = next_;
        next_ = (next_ + 1) % std::ssize(pieces_);
        owners_[slot] = number;
        places_[number].slot = slot;
        places_[number].left = pieces_[number].panels;
        ++reading_;
        work_.notify_one();  // there may be more for another reader
        const Piece& piece = pieces_[number];
        lock.unlock();
        int error = 0;
        auto* room = reinterpret_cast<std::uint8_t*>(memory_->data() + slot * slot_bytes_);
        const std::uint8_t* rows = piece.file->read(piece.offset, piece.bytes, room, error);
        lock.lock();
        --reading_;
        places_[number].rows = rows;
        if (rows == nullptr) {
            empty(slot);
            places_[number].is_unreadable = true;
        }
        complete_.notify_all();
    }
}

}  // namespace chaski

// The threads of a block as fibers of one thread of the host, one after the other. No large header of the
// standard library is included, since it would take most of a kernel's compile time.
#pragma once

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <signal.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace chaski::emulated {

struct Index3 {
    unsigned x, y, z;
};
inline Index3 threadIdx, blockIdx, blockDim, gridDim;
inline std::uint8_t* shared = nullptr;
inline unsigned blocks_so_far = 0;

constexpr std::size_t kStack = 256 << 10;
constexpr unsigned kMostThreads = 1024;
constexpr std::size_t kMostShared = 227 << 10;
constexpr std::uint8_t kCanary = 0x5a;
enum Outcome { kDone, kDeadlock, kBadLaunch, kSharedOverrun, kBadAccess };

// A barrier where fibers wait until `size` of them have arrived, with the values that they bring. Two rounds
// are separate, so that a fast fiber cannot overwrite a value that a slow one has not read.
struct Meeting {
    unsigned arrived = 0, round = 0;
    std::uint64_t values[2][32];
};

struct Block {
#if !defined(__x86_64__)
    ucontext_t fibers[kMostThreads], scheduler;
#endif
    std::uint8_t* stacks = new std::uint8_t[kMostThreads * kStack];
    bool is_over[kMostThreads] = {};
    unsigned threads = 0, own = 0, alive = 0, beginning = 0;
    bool has_moved = false, has_begun = false, has_failed = false;
    const std::size_t* memory = nullptr;  // begins and sizes of memory that is protected until `begin`
    Meeting all, halves[kMostThreads / 16], warps[kMostThreads / 32];
    void (*body)(const void*) = nullptr;
    const void* argument = nullptr;
};
inline Block& block() {
    static Block* only = new Block;
    return *only;
}

#if defined(__x86_64__)
// The callee-saved registers and the stack; a context of the C library would need a system call.
extern "C" void chaski_switch(void** from, void* to);
asm(R"(
.text
.weak chaski_switch
chaski_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");
inline void* places[kMostThreads];
inline void* main_place;
inline void leave() { chaski_switch(&places[block().own], main_place); }
inline void enter() { chaski_switch(&main_place, places[block().own]); }
#else
inline void leave() { swapcontext(&block().fibers[block().own], &block().scheduler); }
inline void enter() { swapcontext(&block().scheduler, &block().fibers[block().own]); }
#endif

inline void run_thread() {
    Block& b = block();
    b.body(b.argument);
    b.is_over[b.own] = true;
    b.has_moved = true;
    --b.alive;
    leave();
    __builtin_trap();
}

inline void prepare(unsigned number) {
    Block& b = block();
    std::uint8_t* stack = b.stacks + number * kStack;
#if defined(__x86_64__)
    auto top = reinterpret_cast<std::uintptr_t>(stack + kStack) & ~std::uintptr_t{15};
    auto* words = reinterpret_cast<void**>(top - 64);
    std::memset(words, 0, 64);
    words[6] = reinterpret_cast<void*>(run_thread);  // the target of `ret`, after six registers
    places[number] = words;
#else
    getcontext(&b.fibers[number]);
    b.fibers[number].uc_stack.ss_sp = stack;
    b.fibers[number].uc_stack.ss_size = kStack;
    makecontext(&b.fibers[number], run_thread, 0);
#endif
}

// Waits until `size` fibers have arrived; returns the number of the round.
template <class Arrive>
unsigned meet(Meeting& m, unsigned size, const Arrive& arrive) {
    const unsigned round = m.round;
    arrive(m.values[round % 2]);
    block().has_moved = true;
    if (++m.arrived == size) {
        m.arrived = 0;
        ++m.round;
        return round;
    }
    while (m.round == round) leave();
    return round;
}

inline void barrier() {
    Block& b = block();
    const unsigned round = b.all.round;
    b.has_moved = true;
    ++b.all.arrived;
    // Fibers that have ended do not count, and may end while others wait.
    while (b.all.round == round) {
        if (b.all.arrived >= b.alive) {
            b.all.arrived = 0;
            ++b.all.round;
            b.has_moved = true;
            return;
        }
        leave();
    }
}

inline void protect(int how) {
    for (const std::size_t* part = block().memory; *part != 0; part += 2) {
        mprotect(reinterpret_cast<void*>(part[0]), part[1], how);
    }
}

// Waits until all threads have come here or ended. Only then, earlier kernels have ended, and their memory
// can be touched.
inline void begin() {
    Block& b = block();
    ++b.beginning;
    b.has_moved = true;
    while (!b.has_begun) {
        if (b.beginning >= b.alive) {
            protect(PROT_READ | PROT_WRITE);
            b.has_begun = b.has_moved = true;
            return;
        }
        leave();
    }
}

// The thread that touched wrong memory never continues.
inline void fail(int) {
    block().has_failed = true;
    leave();
}

// The value that another thread of this half warp, or of this warp, has brought.
template <class T, class Of>
T exchange(T v, unsigned width, const Of& of) {
    static_assert(sizeof(T) <= 8);
    Block& b = block();
    const unsigned own = b.own % width, first = b.own - own;
    const unsigned size = b.threads - first < width ? b.threads - first : width;
    Meeting& m = width == 16 ? b.halves[b.own / 16] : b.warps[b.own / 32];
    const unsigned round =
        meet(m, size, [&](std::uint64_t* values) { std::memcpy(values + own, &v, sizeof(T)); });
    std::memcpy(&v, m.values[round % 2] + of(static_cast<int>(own)), sizeof(T));
    return v;
}

// The order of threads or blocks in which one round computes them, which no result may depend on. It is
// another one in each round, or ascending or descending if CHASKI_EMULATED_ORDER begins with `a` or `d`.
class Order {
   public:
    explicit Order(unsigned count) : count_(count) {
        static const char* chosen = std::getenv("CHASKI_EMULATED_ORDER");
        static const char kind = chosen == nullptr ? 'r' : chosen[0];
        static std::uint32_t state = 1;
        if (kind == 'a') return;
        first_ = step_ = count - 1;
        if (kind == 'd' || count < 3) return;
        state = state * 1664525u + 1013904223u;
        first_ = (state >> 8) % count;
        step_ = 1 + (state >> 16) % (count - 1);
        while (common(step_, count) != 1) step_ = step_ % (count - 1) + 1;
    }
    unsigned operator[](unsigned number) const {
        return static_cast<unsigned>((first_ + std::uint64_t{step_} * number) % count_);
    }

   private:
    static unsigned common(unsigned a, unsigned b) { return b == 0 ? a : common(b, a % b); }
    unsigned count_, first_ = 0, step_ = 1;
};

template <class Body>
int run_blocks(const unsigned* grid, unsigned threads, std::size_t shared_bytes, const Body& body) {
    Block& b = block();
    if (threads == 0 || threads > kMostThreads || threads % 32 != 0) return kBadLaunch;
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535) return kBadLaunch;
    if (shared_bytes > kMostShared) return kBadLaunch;
    static std::uint8_t* memory = new std::uint8_t[kMostShared + 64];
    shared = reinterpret_cast<std::uint8_t*>((reinterpret_cast<std::uintptr_t>(memory) + 15) &
                                             ~std::uintptr_t{15});
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    b.threads = threads;
    b.body = [](const void* argument) { (*static_cast<const Body*>(argument))(); };
    b.argument = &body;
    const unsigned blocks = grid[0] * grid[1] * grid[2];
    const Order in_grid(blocks);
    for (unsigned number = 0; number < blocks; ++number) {
        const unsigned at = in_grid[number];
        blockIdx = {at % grid[0], at / grid[0] % grid[1], at / grid[0] / grid[1]};
        ++blocks_so_far;
        std::memset(shared, 0xff, shared_bytes);  // floats are NaNs until they are written
        std::memset(shared + shared_bytes, kCanary, 16);
        b.all = {};
        for (Meeting& m : b.halves) m.arrived = m.round = 0;
        for (Meeting& m : b.warps) m.arrived = m.round = 0;
        b.alive = threads;
        b.beginning = 0;
        b.has_begun = false;
        protect(PROT_NONE);
        for (unsigned i = 0; i < threads; ++i) {
            b.is_over[i] = false;
            prepare(i);
        }
        while (b.alive > 0) {
            b.has_moved = false;
            const Order in_block(threads);
            for (unsigned n = 0; n < threads; ++n) {
                const unsigned i = in_block[n];
                if (b.is_over[i]) continue;
                b.own = i;
                threadIdx = {i, 0, 0};
                enter();
                if (b.has_failed) return kBadAccess;
            }
            if (!b.has_moved) return kDeadlock;
        }
        for (int i = 0; i < 16; ++i) {
            if (shared[shared_bytes + i] != kCanary) return kSharedOverrun;
        }
    }
    return kDone;
}

template <class Body>
int run(const unsigned* grid, unsigned threads, std::size_t shared_bytes, const std::size_t* memory,
        const Body& body) {
    struct sigaction failing = {}, before;
    failing.sa_handler = fail;
    failing.sa_flags = SA_NODEFER;
    block().memory = memory;
    block().has_failed = false;
    sigaction(SIGSEGV, &failing, &before);
    const int outcome = run_blocks(grid, threads, shared_bytes, body);
    sigaction(SIGSEGV, &before, nullptr);
    protect(PROT_READ | PROT_WRITE);
    return outcome;
}

}  // namespace chaski::emulated

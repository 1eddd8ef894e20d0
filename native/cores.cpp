#include "cores.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "thread_pool.h"

#ifdef __linux__
#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#endif

namespace chaski {

#ifdef __linux__

struct Cores::Seat {
    std::atomic<int> id{0};  // the system's id of the thread
    // While a thread moves itself, it may run only on `target`. A thread that moves it meanwhile finds its
    // former cores in `home`.
    std::atomic<bool> is_moving{false};
    std::atomic<bool> is_to_leave{false};
    cpu_set_t home{}, target{};
};

namespace {

// Nanoseconds that a thread of this process has run; -1 if unknown.
std::int64_t running_time(int id) {
    // The kernel's number of a thread's clock. pthread_getcpuclockid needs a pthread_t, not an id.
    constexpr unsigned kThread = 4, kScheduler = 2;
    const auto clock = static_cast<clockid_t>(~static_cast<unsigned>(id) << 3 | kThread | kScheduler);
    timespec time;
    if (id == 0 || clock_gettime(clock, &time) != 0) return -1;
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// The core whose queue contains a runnable thread; -1 for a thread that sleeps or belongs to another process.
int queue_of(int id) {
    char path[48], text[512];
    std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    const ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    text[size < 0 ? 0 : size] = 0;
    // After the name, which may have any characters: the third field is the state, the 39th the core.
    const char* field = std::strrchr(text, ')');
    if (field == nullptr || field[1] == 0 || field[2] != 'R') return -1;
    ++field;
    for (int number = 3; number < 39; ++number) {
        field = std::strchr(field + 1, ' ');
        if (field == nullptr) return -1;
    }
    const int core = std::atoi(field);
    return core < CPU_SETSIZE ? core : -1;
}

cpu_set_t only(int core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    return cores;
}

// The cores on which a thread may run.
cpu_set_t cores_of(int id) {
    cpu_set_t cores;
    if (sched_getaffinity(id, sizeof cores, &cores) != 0) CPU_ZERO(&cores);
    return cores;
}

void move(int id, const cpu_set_t& target, const cpu_set_t& home) {
    if (sched_setaffinity(id, sizeof target, &target) == 0) sched_setaffinity(id, sizeof home, &home);
}

// Moves the calling thread to the end of a queue. The system lets an arriving thread interrupt the thread
// that has the core, unless the arriving thread has the policy SCHED_BATCH.
void queue_up(const cpu_set_t& target, const cpu_set_t& home) {
    const sched_param priority{};
    const bool is_usual = sched_getscheduler(0) == SCHED_OTHER;
    if (is_usual) sched_setscheduler(0, SCHED_BATCH, &priority);
    move(0, target, home);
    if (is_usual) sched_setscheduler(0, SCHED_OTHER, &priority);
}

}  // namespace

void Cores::enter(int thread) {
    static thread_local const int id = static_cast<int>(syscall(SYS_gettid));
    seats_[thread].id.store(id, std::memory_order_relaxed);
}

bool Cores::stands_still(int thread) const {
    // The system's own threads return a core sooner than that.
    constexpr auto kStandstill = std::chrono::microseconds(100);
    const int id = seats_[thread].id.load(std::memory_order_relaxed);
    const std::int64_t before = running_time(id);
    if (before < 0) return false;
    const auto end = std::chrono::steady_clock::now() + kStandstill;
    while (std::chrono::steady_clock::now() < end) {
        for (int i = 0; i < 64; ++i) relax();
        if (running_time(id) != before) return false;
    }
    return true;
}

void Cores::make_room(int self, int thread) {
    Seat &own = seats_[self], &other = seats_[thread];
    // A thread that has just slept has its own time slice. At the end of an old slice, the arriving thread
    // would stop this one here, and keep it from leaving.
    const std::int64_t before = running_time(other.id);
    std::this_thread::sleep_for(std::chrono::nanoseconds(1));
    const int here = sched_getcpu(), there = queue_of(other.id);
    if (here < 0 || here >= CPU_SETSIZE || there < 0) return;
    own.home = own.target = cores_of(own.id);
    other.is_to_leave.store(false);
    if (here != there) {
        const cpu_set_t home = other.is_moving ? other.home : cores_of(other.id);
        if (!CPU_ISSET(here, &home) || !CPU_ISSET(there, &own.home)) return;
        if (running_time(other.id) != before) return;
        move(other.id, only(here), home);
        own.target = only(there);
    } else {
        for (const Seat& seat : seats_) {
            const int core = &seat == &own || seat.id == 0 ? -1 : queue_of(seat.id);
            if (core >= 0) CPU_CLR(core, &own.target);
        }
        if (CPU_COUNT(&own.target) == 0) {
            sched_yield();
            return;
        }
    }
    own.is_moving.store(true);
    own.is_to_leave.store(true);
}

void Cores::leave(int self) {
    Seat& own = seats_[self];
    if (!own.is_moving) return;
    if (own.is_to_leave.exchange(false)) queue_up(own.target, own.home);
    own.is_moving.store(false);
}

#else

struct Cores::Seat {};

void Cores::enter(int) {}

bool Cores::stands_still(int) const { return false; }

void Cores::make_room(int, int) {}

void Cores::leave(int) {}

#endif

Cores::Cores(int threads) : seats_(threads) {}

Cores::~Cores() = default;

}  // namespace chaski

// The cores that the system gives to the threads of a team. A thread can give its own core to another thread.
#pragma once

#include <cstdint>
#include <vector>

namespace chaski {

// All functions do nothing on systems that do not report cores, or if the process may not query them.
class Cores {
   public:
    explicit Cores(int threads);
    ~Cores();
    Cores(const Cores&) = delete;
    Cores& operator=(const Cores&) = delete;

    // Registers the calling thread as thread number `thread` of the team.
    void enter(int thread);
    // Watches a thread for less than a time slice; true if it never ran.
    bool stands_still(int thread) const;
    // Helps a runnable thread that has no core. Moves it to the core of the calling thread `self`, which has
    // nothing to do, and plans to move `self` into the other thread's queue. If both are on one core, `self`
    // goes to a core without other threads of the team. One caller at a time.
    void make_room(int self, int thread);
    // Moves to the core that `make_room` has planned, after all threads that wait there. Returns when the
    // thread gets a core.
    void leave(int self);

   private:
    struct Seat;
    std::vector<Seat> seats_;
};

}  // namespace chaski

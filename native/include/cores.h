// The cores that the system gives to the threads of a team, and how a thread gives its own to another one.
#pragma once

#include <cstdint>
#include <vector>

namespace chaski {

// All of this does nothing on systems that do not report it, and where the process is not allowed to ask.
class Cores {
   public:
    explicit Cores(int threads);
    ~Cores();
    Cores(const Cores&) = delete;
    Cores& operator=(const Cores&) = delete;

    // The calling thread is this one of the team.
    void enter(int thread);
    // Looks at a thread for a time that is shorter than a time slice; true if it never ran.
    bool stands_still(int thread) const;
    // For a thread that stands still but could run: moves it to the core of the calling thread `self`, which
    // has nothing to do, and plans that `self` goes to that one's queue. If both are at one core, `self` goes
    // to one without other threads of the team. One caller at a time.
    void make_room(int self, int thread);
    // Goes where `make_room` has planned to, after all threads that wait for a core there. Returns when it
    // has one.
    void leave(int self);

   private:
    struct Seat;
    std::vector<Seat> seats_;
};

}  // namespace chaski

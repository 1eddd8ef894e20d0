// Lets other threads run Python while this one computes.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace chaski {

// Python ends a daemon thread that wants to continue after the interpreter has ended. Up to 3.13 it unwinds
// the thread's stack, and a noexcept function on that stack aborts the whole process. So the thread waits
// here forever, as with later versions, until the main thread ends the process.
class Unlocked {
   public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    ~Unlocked() noexcept(false) {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) pause();
        }
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

   private:
    PyThreadState* state_;
};

}  // namespace chaski

// Lets other threads run Python while this one computes.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace chaski {

// Python ends a daemon thread that wants to continue after the interpreter has ended: up to 3.13 by unwinding
// its stack, which ends the whole process where it meets a function that lets nothing through. So the thread
// stops here, as it does with later versions, and the process ends when its main thread does.
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

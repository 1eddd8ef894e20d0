// The rounding of floating-point numbers in this thread, and its treatment of denormal numbers.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace chaski {

// The control register: rounding, flushing of denormal numbers to zero, exceptions that stop the process.
#if defined(__x86_64__)
using FloatMode = std::uint32_t;
inline constexpr FloatMode kFlags = 0x3f;  // status flags; any code may change them
inline constexpr FloatMode kUsualMode = 0x1f80;
inline FloatMode float_mode() { return _mm_getcsr(); }
inline void set_float_mode(FloatMode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
using FloatMode = std::uint64_t;
inline constexpr FloatMode kFlags = 0;
inline constexpr FloatMode kUsualMode = 0;
inline FloatMode float_mode() {
    FloatMode mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
inline void set_float_mode(FloatMode mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
using FloatMode = std::uint32_t;
inline constexpr FloatMode kFlags = 0;
inline constexpr FloatMode kUsualMode = 0;
inline FloatMode float_mode() { return kUsualMode; }
inline void set_float_mode(FloatMode) {}
#endif

// While it lives, this thread rounds to nearest and keeps denormal numbers, as the numeric rule requires,
// whatever another library of the process has set. Reading the register takes a few cycles, and it is rarely
// written.
class UsualFloats {
   public:
    UsualFloats() : before_(float_mode()) {
        if (is_changed()) set_float_mode(kUsualMode);
    }
    ~UsualFloats() {
        if (is_changed()) set_float_mode(before_);
    }
    UsualFloats(const UsualFloats&) = delete;
    UsualFloats& operator=(const UsualFloats&) = delete;

   private:
    bool is_changed() const { return (before_ & ~kFlags) != kUsualMode; }

    FloatMode before_;
};

}  // namespace chaski

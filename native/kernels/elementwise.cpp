// The table of elementwise operations. Compiled once per instruction set.
//
// An operation is its formula (formulas.h) in a loop over rows; the table below names them.

#include <type_traits>
#include <utility>

#include "formulas.h"
#include "map.h"
#include "ops.h"

namespace chaski::CHASKI_ISA {
namespace {

// The loop of a formula; the number of operands follows from its type.
template <auto formula>
struct Loop;

template <class... Arguments, F32x16 (*formula)(Arguments...)>
struct Loop<formula> {
    static constexpr int kOperands = (0 + ... + (std::is_same_v<Arguments, F32x16> ? 1 : 0));
    static constexpr int kParameters = static_cast<int>(sizeof...(Arguments)) - kOperands;
    static_assert(kOperands <= kMaxElementwiseOperands);

    static void apply(const float* const* x, const float* parameters, std::int64_t count, float* y) {
        apply(x, parameters, count, y, std::make_index_sequence<kOperands>{},
              std::make_index_sequence<kParameters>{});
    }

   private:
    template <std::size_t... X, std::size_t... P>
    CHASKI_INLINE static void apply(const float* const* x, const float* parameters, std::int64_t count,
                                    float* y, std::index_sequence<X...>, std::index_sequence<P...>) {
        // Copies, because otherwise `y` might alias the parameters.
        [[maybe_unused]] const float own[kParameters + 1] = {parameters[P]..., 0.0f};
        map(
            count, y,
            [&](auto... operands) __attribute__((always_inline)) { return formula(operands..., own[P]...); },
            x[X]...);
    }
};

template <auto formula>
constexpr Elementwise row(const char* name) {
    using Kernel = Loop<formula>;
    return {name, Kernel::kOperands, Kernel::kParameters, Kernel::apply};
}

}  // namespace

extern const Elementwise kElementwise[];
const Elementwise kElementwise[] = {
#define CHASKI_ROW(formula) row<formula>(#formula),
    CHASKI_FORMULAS(CHASKI_ROW)
#undef CHASKI_ROW
        {nullptr, 0, 0, nullptr},
};

}  // namespace chaski::CHASKI_ISA

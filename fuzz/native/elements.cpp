// Operations on rows with any bits as numbers: all instruction sets compute the same bits.
#include "comparison.h"
#include "input.h"

namespace chaski {
namespace {

constexpr std::int64_t kMost = 70;
constexpr int kOthers = 8;

std::vector<float> compute(const Ops& ops, std::int64_t choice, std::int64_t n, const std::vector<float>& a,
                           const std::vector<float>& b, const std::vector<float>& c) {
    std::vector<float> y(n);
    switch (choice) {
        case 0:
            ops.rms_norm(a.data(), b.data(), 1e-5f, n, y.data());
            break;
        case 1:
            ops.layer_norm(a.data(), b.data(), c.data(), 1e-5f, n, y.data());
            break;
        case 2:
            ops.scale(a.data(), 0.3f, n, y.data());
            break;
        case 3:
            ops.add(a.data(), b.data(), n, y.data());
            break;
        case 4:
            ops.softmax(a.data(), n, y.data());
            break;
        case 5:
            ops.sigmoid(a.data(), n, y.data());
            break;
        case 6:
            ops.exponentials(a.data(), b[0], n, y.data());
            break;
        case 7:
            y = c;
            ops.add_scaled(y.data(), a.data(), b[0], n);
            break;
        default: {
            const float *operands[] = {a.data(), b.data(), c.data()}, parameters[] = {1.702f, 7.0f, 0.3f};
            ops.elementwise[choice - kOthers].apply(operands, parameters, n, y.data());
        }
    }
    return y;
}

std::int64_t num_elementwise(const Ops& ops) {
    std::int64_t count = 0;
    while (ops.elementwise[count].name != nullptr) ++count;
    return count;
}

}  // namespace
}  // namespace chaski

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace chaski;
    static const Comparison all;
    static const std::int64_t choices = kOthers + num_elementwise(all.tables()[0].ops);
    Input input(data, size);
    const std::int64_t choice = input.below(choices), n = 1 + input.below(kMost);
    const std::vector<float> a = input.floats(n), b = input.floats(n), c = input.floats(n);
    const std::vector<float> expected = compute(all.tables()[0].ops, choice, n, a, b, c);
    const std::string what = "operation " + std::to_string(choice);
    for (std::size_t i = 1; i < all.tables().size(); ++i)
        require_equal(what.c_str(), expected, compute(all.tables()[i].ops, choice, n, a, b, c));
    return 0;
}

// The natural logarithm in double precision, from operations that every machine rounds alike. Logarithms of
// mathematical libraries differ in their last bits.
#pragma once

#include <cmath>

namespace chaski {

// ln x for normal x above 0, to about a unit in the last place.
//
// x = m 2^e with m from sqrt(1/2) to sqrt 2, and with s = (m - 1) / (m + 1)
// ln m = 2 (s + s^3 / 3 + s^5 / 5 + ...), in which terms after s^23 / 23 are negligible.
inline double natural_logarithm(double x) {
    int e = 0;
    double m = std::frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2;
        --e;
    }
    const double s = (m - 1) / (m + 1), square = s * s;
    double series = 0;
    for (int k = 23; k >= 3; k -= 2) series = series * square + 1.0 / k;
    // ln 2 in two parts; the first has few bits, so its product is exact.
    constexpr double kHigh = 6.93147180369123816490e-01, kLow = 1.90821492927058770002e-10;
    return e * kHigh + (2 * s + (2 * s * square * series + e * kLow));
}

}  // namespace chaski

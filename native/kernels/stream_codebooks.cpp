// Few tokens, weights of types with codebooks (stream_quantized.h).
#include "entry_points.h"
#include "stream_quantized.h"

namespace chaski::CHASKI_ISA {

void stream_codebooks(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                      int64_t n, const Output& out, void* scratch, const Variant& variant) {
    if constexpr (kStreamTokens > 0)
        stream_as(CodebookFormats(), w, panel_begin, panel_end, x, n, out, scratch, variant);
}

}  // namespace chaski::CHASKI_ISA

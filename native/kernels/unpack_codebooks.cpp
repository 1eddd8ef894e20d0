// Unpacking of panels of types with codebooks, compiled for instructions that only some processors of an
// instruction set have.
#include "unpack_blocks.h"

namespace chaski::CHASKI_ISA {

template <class... Formats>
static Unpack find_unpack(DType type, bool is_centred, FormatList<Formats...>) {
    Unpack found = nullptr;
    ((Formats::kType == type
          ? void(found = is_centred ? unpack_blocks<Formats, true> : unpack_blocks<Formats, false>)
          : void()),
     ...);
    return found;
}

Unpack unpack_of_codebook(DType type, bool is_centred) {
    return find_unpack(type, is_centred, CodebookFormats());
}

}  // namespace chaski::CHASKI_ISA

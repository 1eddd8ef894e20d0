// compare_isas ISA...: checks that the kernels of all instruction sets of this machine compute the same bits.
//
// The arguments are the sets that must be found, in the order of preference; without arguments, any sets are
// accepted. The last line is the same on every processor. The Python tests check that the bits are correct.
#include <cstdio>

#include "comparison.h"

int main(int count, char** arguments) {
    chaski::Comparison compare;
    const std::vector<std::string> wanted(arguments + 1, arguments + count);
    std::vector<std::string> found;
    std::printf("instruction sets:");
    for (const chaski::Table& table : compare.tables()) {
        found.push_back(table.isa);
        std::printf(" %s", table.isa.c_str());
    }
    std::printf("\n");
    if (!wanted.empty() && found != wanted) {
        std::printf("these are not the ones that were asked for\n");
        return 1;
    }
    chaski::compare_matmul(compare);
    chaski::compare_ops(compare);
    chaski::compare_attention(compare);
    chaski::compare_gated_delta(compare);
    chaski::compare_lora(compare);
    std::printf("%d of %d cases differ\n", compare.failures(), compare.cases());
    std::printf("digest %016llx\n", static_cast<unsigned long long>(compare.digest()));
    return compare.failures() == 0 ? 0 : 1;
}

// From whom the rows of a pass go on, for layers with running states.
#pragma once

#include "visibility.h"

namespace draftwood {

// Ancestors of the rows of one sequence. Nodes are numbered from the first behind the committed
// tokens on: `ran` of them stem from earlier passes, and the others are the rows.
class Lineage {
public:
    int first_row = 0;  // among all of the pass
    int64_t start = 0, count = 0, before = 0;
    Blocks blocks = nullptr;
    bool is_text = false, is_chain = false;

    // `sees` [count][nodes] says which nodes a row sees; none is behind it.
    void read(const Sequence& sequence, int row, const uint8_t* sees) {
        first_row = row, start = sequence.start, count = sequence.count, before = sequence.before;
        blocks = sequence.blocks, is_text = sequence.is_text;
        const int64_t all = sequence.nodes();
        is_chain = true, paths.clear(), firsts.assign(1, 0);
        for (int64_t i = 0; i < count && is_chain; i++)
            is_chain = !std::memchr(sees + i * all, 0, ran() + i + 1);
        for (int64_t i = 0; !is_chain && i < count; i++) {
            for (int64_t node = 0; node <= ran() + i; node++)
                if (sees[i * all + node]) paths.push_back((int32_t)node);
            firsts.push_back((int32_t)paths.size());
        }
    }

    // Whether the rows are a text that goes on, and not a draft's.
    bool grows() const { return is_text && is_chain; }

    int64_t ran() const { return start - before; }

    // Nodes of a row's path, itself included, and which they are, the eldest first.
    int64_t length(int64_t row) const {
        return is_chain ? ran() + row + 1 : firsts[row + 1] - firsts[row];
    }
    int64_t node(int64_t row, int64_t i) const { return is_chain ? i : paths[firsts[row] + i]; }

private:
    std::vector<int32_t> paths, firsts;
};

}  // namespace draftwood

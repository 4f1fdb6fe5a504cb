// Work that threads share: a list of phases, each a number of tasks (team.h).
#pragma once

#include <algorithm>
#include <cstdint>

namespace draftwood {

class Job {
public:
    virtual int phases() const = 0;
    virtual int tasks(int phase) const = 0;
    // gives the same whoever does it, in whatever order
    virtual void perform(int phase, int task) = 0;

protected:
    ~Job() = default;
};

// act(i) for every i below count.
template <class Act>
class Loop final : public Job {
public:
    Loop(int64_t count, int threads, Act& act)
        : count(count),
          pieces(threads == 1 ? 1 : (int)std::min<int64_t>(count, PIECES_PER_THREAD * threads)),
          act(act) {}

    int phases() const override { return 1; }
    int tasks(int) const override { return pieces; }

    void perform(int, int piece) override {
        for (int64_t i = count * piece / pieces; i < count * (piece + 1) / pieces; i++) act(i);
    }

private:
    static constexpr int PIECES_PER_THREAD = 8;

    const int64_t count;
    const int pieces;
    Act& act;
};

}  // namespace draftwood

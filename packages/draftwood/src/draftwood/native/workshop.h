// The threads that forward passes and all else share (decoder.cpp).
#pragma once

#include "job.h"

namespace draftwood {

struct Decoder;
struct ForwardInput;
struct Workshop;

// A forward pass; those of one workshop take turns. std::bad_alloc where memory does not suffice.
void pass(const Decoder& decoder, const ForwardInput& run, int threads);

// The first row of a pass whose token is none of the vocabulary; else -1.
int32_t unknown_row(const Decoder& decoder, const ForwardInput& run);

// The team's turn at so many things; one thread's where the team is at work for another.
class TeamTurn {
public:
    TeamTurn(int64_t count, int threads);
    ~TeamTurn();

    TeamTurn(const TeamTurn&) = delete;

    // act(i) for every i below count
    template <class Act>
    void each(Act act) const {
        Loop<Act> loop(count, workshop ? threads : 1, act);
        run(loop);
    }

private:
    const int64_t count;
    const int threads;
    Workshop* const workshop;  // whose turn it is, or null

    void run(Job& job) const;
};

// act(i) for every i below count, by the team unless it is at work for another thread.
template <class Act>
void for_each(int64_t count, int threads, Act act) {
    TeamTurn(count, threads).each(act);
}

}  // namespace draftwood

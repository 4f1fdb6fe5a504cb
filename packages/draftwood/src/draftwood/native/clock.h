// Clocks: of steps, and of where the time of a forward pass goes, by thread and by task.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace draftwood {

// As native/clock.py names them.
enum PhaseKind { PRODUCTS, ATTENTION, NORMS, WAITING, PARTS };

// Seconds since it was asked last.
class Lap {
public:
    double operator()() {
        const Clock::time_point now = Clock::now();
        const double seconds = std::chrono::duration<double>(now - since).count();
        since = now;
        return seconds;
    }

private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point since = Clock::now();
};

// Adds to `seconds` [threads][PARTS] what each thread was at, or to nothing where it is null. A
// thread waits whenever it is at no task, so that its parts add up to the time of the pass.
class PhaseClock {
public:
    PhaseClock(double* seconds, int threads) : seconds(seconds) {
        if (seconds) since.assign(threads, {now()});
    }

    bool is_on() const { return seconds; }

    // All that passed since the thread's last stop was for this part.
    void stop(int thread, PhaseKind part) { stop(thread, part, now()); }

    void end() {
        if (!is_on()) return;
        const double time = now();
        for (size_t thread = 0; thread < since.size(); thread++) stop((int)thread, WAITING, time);
    }

private:
    struct alignas(64) Stop {  // each in its own line of the caches
        double time;
    };

    double* const seconds;
    std::vector<Stop> since;

    void stop(int thread, PhaseKind part, double time) {
        seconds[thread * PARTS + part] += time - since[thread].time;
        since[thread].time = time;
    }

    static double now() {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }
};

// One task of a forward pass: the number of its phase, and what it took.
struct TaskTime {
    int32_t phase, kind;  // PhaseKind
    double seconds;
};

// A pass split for so many threads, and done by one that writes down each task.
struct TaskTrace {
    int32_t threads;
    int32_t most, count;  // tasks that have room, and those there were
    TaskTime* tasks;

    void add(int phase, PhaseKind kind, double seconds) {
        if (count < most) tasks[count] = {phase, kind, seconds};
        count++;
    }
};

}  // namespace draftwood

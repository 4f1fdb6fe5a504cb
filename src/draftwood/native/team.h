// Threads that share work and sleep when there is none.
//
// A job is a list of phases, and a phase is a number of tasks. Tasks are handed out one by one to whoever asks, and the
// thread that finishes a phase's last task opens the next, so a thread that is not running holds back the one task that
// it has taken and nothing else. Whoever finds no task waits a little, then sleeps: on a busy machine a waiting thread
// must not use up time that the one it waits for needs.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace draftwood {

class Job {
public:
    virtual int phases() const = 0;
    virtual int tasks(int phase) const = 0;
    virtual void perform(int phase, int task) = 0;  // gives the same whoever does it, in whatever order

protected:
    ~Job() = default;
};

// act(i) for every i below count.
template <class Act>
class Loop final : public Job {
public:
    Loop(int64_t count, int threads, Act& act)
        : count(count), pieces(threads == 1 ? 1 : (int)std::min<int64_t>(count, PIECES_PER_THREAD * threads)), act(act) {}

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

// Where one thread sleeps until another wakes it.
class Bed {
public:
    // Sleep, unless `awake` says by now that there is a reason to be awake. May return early.
    template <class Awake>
    void sleep(Awake awake) {
        asleep.store(1);
        if (awake()) asleep.store(0);
        else wait();
    }

    // Whether there was somebody to wake.
    bool wake() {
        if (!asleep.load() || !asleep.exchange(0)) return false;
        notify();
        return true;
    }

private:
    std::atomic<uint32_t> asleep{0};

#if defined(__linux__)
    void wait() {
        while (asleep.load()) syscall(SYS_futex, &asleep, FUTEX_WAIT_PRIVATE, 1, nullptr, nullptr, 0);
    }
    void notify() { syscall(SYS_futex, &asleep, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }
#else
    std::mutex mutex;
    std::condition_variable changed;

    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return !asleep.load(); });
    }
    void notify() {
        { std::lock_guard<std::mutex> lock(mutex); }  // not between the sleeper's look and its sleep
        changed.notify_one();
    }
#endif
};

class Team {
public:
    // Do a job with so many threads, this one included. One job at a time.
    void run(Job& wanted, int threads) {
        if (threads > 1 && (threads = hire(threads)) > 1) return share(wanted, threads);
        for (int phase = 0; phase < wanted.phases(); phase++)
            for (int task = 0, count = wanted.tasks(phase); task < count; task++) wanted.perform(phase, task);
    }

private:
    static constexpr int MOST = 256;
    static constexpr int BITS = 24;  // of a ticket for the tasks that nobody has taken; above them the phase's number
    using Time = std::chrono::microseconds;
    static constexpr Time PATIENCE{100};        // longer than nearly all waits within a job on an idle machine
    static constexpr Time LONG_PATIENCE{1000};  // between jobs: longer than a step takes outside of them
    static constexpr int CALM = 50;             // jobs without a long wait, after which the machine counts as idle

    std::vector<std::unique_ptr<Bed>> beds;  // of this thread and the hired ones
    std::atomic<int> wanted_threads{0};
    std::atomic<uint64_t> ticket{0};  // phases have numbers of their own for ever, so an old ticket is worth nothing
    std::atomic<bool> done{true};
    std::atomic<int> unfinished{0};   // tasks of the phase
    std::atomic<int> calm{CALM};      // jobs since somebody was waited for in vain
    Job* job = nullptr;               // this and what follows changes only while no task is taken
    int phase = 0, count = 0;

    static int left(uint64_t ticket) { return (int)(ticket & ((1u << BITS) - 1)); }

    // Have so many threads; returns how many there are.
    int hire(int threads) {
        if (beds.empty()) beds.reserve(MOST), beds.push_back(std::make_unique<Bed>());
        threads = std::min(threads, MOST);
        try {
            while ((int)beds.size() < threads) {
                const int member = (int)beds.size();
                auto bed = std::make_unique<Bed>();
                std::thread([this, member, bed = bed.get()] { serve(member, *bed); }).detach();
                beds.push_back(std::move(bed));
            }
        } catch (const std::system_error&) {  // the system gives no more threads: fewer do the work
        }
        return std::min(threads, (int)beds.size());
    }

    void share(Job& wanted, int threads) {
        job = &wanted, phase = -1;
        wanted_threads.store(threads);
        calm.store(std::min(CALM, calm.load() + 1));
        done.store(false);
        open_next();
        while (!done.load()) {
            const uint64_t seen = ticket.load();
            if (!take(seen) && left(seen) == 0) wait(*beds[0], seen, [&] { return done.load(); });
        }
    }

    void serve(int member, Bed& bed) {
        for (;;) {
            const uint64_t seen = ticket.load();
            const auto invited = [&] { return member < wanted_threads.load(); };
            if (!invited()) bed.sleep(invited);
            else if (!take(seen) && left(seen) == 0) wait(bed, seen, [] { return false; });
        }
    }

    // Do one task, if this ticket is still good for one.
    bool take(uint64_t seen) {
        if (left(seen) == 0 || !ticket.compare_exchange_strong(seen, seen - 1)) return false;
        job->perform(phase, count - left(seen));
        if (unfinished.fetch_sub(1) == 1) open_next();
        return true;
    }

    // The next phase that has tasks; if there is none, the end.
    void open_next() {
        do phase++;
        while (phase < job->phases() && job->tasks(phase) == 0);
        if (phase == job->phases()) return end();
        count = job->tasks(phase);
        unfinished.store(count);
        const int threads = wanted_threads.load();
        const int others = count - 1;
        ticket.store(next_ticket() | (uint64_t)count);  // from here on the job may be done by others at any time
        for (int member = 0, woken = 0; member < threads && woken < others; member++) woken += beds[member]->wake();
    }

    void end() {
        ticket.store(next_ticket());
        done.store(true);  // from here on there may be another job
        beds[0]->wake();
    }

    uint64_t next_ticket() const { return ((ticket.load() >> BITS) + 1) << BITS; }

    // Until there is another ticket or it is over. Whoever outwaits its patience within a job has found the machine busy,
    // where waiting takes time from those that are waited for.
    template <class Over>
    void wait(Bed& bed, uint64_t seen, Over over) {
        const auto changed = [&] { return ticket.load() != seen || over(); };
        const bool within = !done.load();
        const Time patience = within || calm.load() < CALM ? PATIENCE : LONG_PATIENCE;
        const auto until = std::chrono::steady_clock::now() + patience;
        do
            for (int spins = 0; spins < 32; spins++) {
                if (changed()) return;
                pause();
            }
        while (std::chrono::steady_clock::now() < until);
        if (within) calm.store(0);
        bed.sleep(changed);
    }

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }
};

}  // namespace draftwood

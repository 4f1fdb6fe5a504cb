// Threads that share work and sleep when there is none.
//
// A job is a list of phases, and a phase is a number of tasks. Tasks are handed out one by one to
// whoever asks, and the thread that finishes a phase's last task opens the next, so a thread that
// is not running holds back the one task that it has taken and nothing else. Whoever finds no task
// waits a little, then sleeps: on a busy machine a waiting thread must not use up time that the one
// it waits for needs.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "job.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace draftwood {

// The number of the calling thread in its team; 0 for whoever runs the job.
inline int& own_place() {
    static thread_local int place = 0;
    return place;
}

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
        while (asleep.load())
            syscall(SYS_futex, &asleep, FUTEX_WAIT_PRIVATE, 1, nullptr, nullptr, 0);
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
        // not between the sleeper's look and its sleep
        { std::lock_guard<std::mutex> lock(mutex); }
        changed.notify_one();
    }
#endif
};

// Does a job with the calling thread.
inline void do_alone(Job& wanted) {
    for (int phase = 0; phase < wanted.phases(); phase++)
        for (int task = 0, count = wanted.tasks(phase); task < count; task++)
            wanted.perform(phase, task);
}

class Team {
public:
    // Do a job with so many threads, this one included. One job at a time. A lack of memory in one
    // of them is the caller's, and leaves the rest of the job undone.
    void run(Job& wanted, int threads) {
        if (threads > 1 && (threads = hire(threads)) > 1) return share(wanted, threads);
        do_alone(wanted);
    }

    // Whether there are more threads than CPUs, so that whoever waits yields to others.
    void set_crowded(bool is_crowded) { crowded.store(is_crowded); }

    // That this process may run on.
    static int cpus() {
#if defined(__linux__)
        cpu_set_t set;
        if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
#endif
        return std::max(1, (int)std::thread::hardware_concurrency());
    }

private:
    static constexpr int MOST = 256;
    // of a ticket for the tasks that nobody has taken; above them the phase's number
    static constexpr int BITS = 24;
    // longer than nearly all waits within a pass
    static constexpr int SPINS = 500;
    // longer than a step takes outside of its pass
    static constexpr std::chrono::microseconds PATIENCE{1000};

    // One thread's place in the team.
    struct Member {
        // for its share of a phase's tasks, which others may take from
        alignas(64) std::atomic<uint64_t> ticket{0};
        int end = 0;  // of its share
        std::atomic<int> cpu{-1};  // on which it was last seen
        alignas(64) Bed bed;
    };

    std::vector<std::unique_ptr<Member>> members;  // the first is whoever runs a job

    // In one line of the caches what a thread writes that opens a phase, since all others read it
    // then.
    alignas(64) std::atomic<uint64_t> opened{0};  // grows whenever there may be something to do
    std::atomic<bool> done{true}, lacks_memory{false};
    std::atomic<int> wanted_threads{0};
    std::atomic<bool> crowded{false};
    Job* job = nullptr;  // this and what follows changes only while no task is taken
    int phase = 0;
    uint64_t number = 0;  // of the phase, for ever its own, so that an old ticket is worth nothing

    alignas(64) std::atomic<int> unfinished{0};  // tasks of the phase

    static int left(uint64_t ticket) { return (int)(ticket & ((1u << BITS) - 1)); }

    // Have so many threads; returns how many there are.
    int hire(int threads) {
        if (members.empty()) members.reserve(MOST), members.push_back(std::make_unique<Member>());
        threads = std::min(threads, MOST);
        try {
            while ((int)members.size() < threads) {
                auto member = std::make_unique<Member>();
                std::thread([this, place = (int)members.size(), own = member.get()] {
                    serve(place, *own);
                }).detach();
                members.push_back(std::move(member));
            }
        } catch (const std::system_error&) {  // the system gives no more threads: fewer do the work
        }
        return std::min(threads, (int)members.size());
    }

    void share(Job& wanted, int threads) {
        members[0]->cpu.store(current_cpu(), std::memory_order_relaxed);
        job = &wanted, phase = -1;
        wanted_threads.store(threads);
        done.store(false);
        open_next();
        while (!done.load()) {
            const uint64_t seen = opened.load();
            if (!take_all(0)) wait(0, seen, [&] { return done.load(); });
        }
        if (lacks_memory.exchange(false)) throw std::bad_alloc();
    }

    void perform(int task) {
        if (lacks_memory.load(std::memory_order_relaxed)) return;
        try {
            job->perform(phase, task);
        } catch (const std::bad_alloc&) {
            lacks_memory.store(true);
        }
    }

    void serve(int place, Member& own) {
        own_place() = place;
        for (;;) {
            const uint64_t seen = opened.load();
            const auto invited = [&] { return place < wanted_threads.load(); };
            if (!invited()) own.bed.sleep(invited);
            else if (!take_all(place)) wait(place, seen, [] { return false; });
        }
    }

    // Do tasks while there are any, first one's own and then those of others; whether there were.
    bool take_all(int place) {
        const int threads = wanted_threads.load();
        if (place >= threads) return false;  // invited to the job before this one
        int finished = 0;
        for (int i = 0; i < threads; i++) {
            Member& member = *members[(place + i) % threads];
            while (take(member)) finished++;
        }
        if (finished && unfinished.fetch_sub(finished) == finished) open_next();
        return finished > 0;
    }

    bool take(Member& from) {
        uint64_t ticket = from.ticket.load();
        while (left(ticket) > 0)
            if (from.ticket.compare_exchange_weak(ticket, ticket - 1)) {
                perform(from.end - left(ticket));
                return true;
            }
        return false;
    }

    // The next phase that has tasks for several; a single one is done here and now. If there is
    // none, the end.
    void open_next() {
        for (phase++; phase < job->phases() && job->tasks(phase) < 2; phase++)
            if (job->tasks(phase) == 1) perform(0);
        if (phase == job->phases()) {
            done.store(true);  // from here on there may be another job
            opened.fetch_add(1);
            members[0]->bed.wake();
            return;
        }
        const int64_t count = job->tasks(phase), threads = wanted_threads.load();
        const uint64_t name = ++number << BITS;
        unfinished.store((int)count, std::memory_order_relaxed);
        for (int64_t i = 0, first = 0; i < threads; i++) {
            Member& member = *members[i];
            const int64_t end = count * (i + 1) / threads;
            member.end = (int)end;
            // from here on the phase may change at any time
            member.ticket.store(name | (uint64_t)(end - first), std::memory_order_release);
            first = end;
        }
        opened.fetch_add(1);
        for (int64_t i = 0, woken = 0; i < threads && woken < count - 1; i++)
            woken += members[i]->bed.wake();
    }

    // Until another phase is open or it is over. A wake costs more than nearly all waits, so a
    // thread spins at first. A longer wait is for a thread that is not running, which may need the
    // very CPU that would be spun on: whoever waits goes to a CPU of its own, or yields.
    template <class Over>
    void wait(int place, uint64_t seen, Over over) {
        const auto changed = [&] { return opened.load() != seen || over(); };
        const bool yields = crowded.load();
        if (!yields && spin(changed)) return;
        if (!yields) move_apart(place);
        const auto until = std::chrono::steady_clock::now() + PATIENCE;
        do
            for (int i = 0; i < 32; i++) {
                if (changed()) return;
                if (yields) std::this_thread::yield();
                else pause();
            }
        while (std::chrono::steady_clock::now() < until);
        members[place]->bed.sleep(changed);
    }

    template <class Changed>
    static bool spin(Changed changed) {
        for (int spins = 0; spins < SPINS; spins++) {
            if (changed()) return true;
            pause();
        }
        return false;
    }

#if defined(__linux__)
    static int current_cpu() { return sched_getcpu(); }

    // Where another thread of the team has this CPU, take one that none of them has. Left alone,
    // two threads may share a CPU for long while something of low priority has the other.
    void move_apart(int place) {
        cpu_set_t others, all;
        CPU_ZERO(&others);
        for (int i = 0, threads = wanted_threads.load(); i < threads; i++)
            if (const int cpu = members[i]->cpu.load(std::memory_order_relaxed);
                i < place && cpu >= 0 && cpu < CPU_SETSIZE)
                CPU_SET(cpu, &others);
        const int own = sched_getcpu();
        members[place]->cpu.store(own, std::memory_order_relaxed);
        if (own < 0 || own >= CPU_SETSIZE || !CPU_ISSET(own, &others)) return;
        if (sched_getaffinity(0, sizeof all, &all)) return;
        cpu_set_t free = all;
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &others)) CPU_CLR(cpu, &free);
        if (!CPU_COUNT(&free) || sched_setaffinity(0, sizeof free, &free)) return;
        sched_setaffinity(0, sizeof all, &all);
    }
#else
    static int current_cpu() { return -1; }
    void move_apart(int) {}
#endif

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }
};

}  // namespace draftwood

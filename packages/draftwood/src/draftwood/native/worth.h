// What a source that takes its time turned out to be worth, over all texts of a process.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <vector>

namespace draftwood {

// What a source that takes its time adds to the best estimate, by what the others promise:
// Asking of acceptance.py.
struct AskingGains {
    int32_t buckets, steps;
    const int32_t* bucket_of;
    double strength, decay, before_evidence, reach[2];  // at the root and deeper
    std::vector<double> sums[2], trials[2];

    template <class Settings>
    AskingGains(const Settings& settings, int source)
        : buckets(settings.buckets),
          steps(settings.steps),
          bucket_of(settings.bucket_of),
          strength(settings.asking_strength),
          decay(settings.asking_decay),
          before_evidence(settings.asking_gain[source]),
          reach{settings.asking_reach[2 * source], settings.asking_reach[2 * source + 1]} {
        forget();
    }

    void forget() {
        for (int deep = 0; deep < 2; deep++) {
            sums[deep].assign(buckets, 0);
            trials[deep].assign(buckets, 0);
        }
    }

    int bucket(double best) const {
        return bucket_of[(int)std::min(steps - 1.0, best * steps)];
    }

    double gain(bool deep, double best) const {
        const int at = bucket(best);
        const double before = before_evidence * (1 - best);
        return (strength * before + sums[deep][at]) / (strength + trials[deep][at]);
    }

    void learn(bool deep, double best, double more) {
        const int at = bucket(best);
        sums[deep][at] = sums[deep][at] * decay + more;
        trials[deep][at] = trials[deep][at] * decay + 1;
    }

    // `trial`: whether it is asked in any case; other texts that share the pass do not wait for one.
    // `price`: tokens that a further node costs; `rate`: tokens a second so far; `seconds`: of
    // asking; `too_much`: what gains were stated too high.
    bool pays(bool deep, bool trial, double chance, double best, double price, double rate,
              double seconds, double too_much = 0) const {
        if (!deep && trial) return true;
        const double expected = best + gain(deep, best) - too_much;
        const double before = std::max(0.0, chance * best - price),
                     after = std::max(0.0, chance * expected - price);
        return reach[deep] * (after - before) > rate * seconds;
    }
};

// CWorthSettings of trained_head.py; Resting of acceptance.py says what the numbers are.
struct WorthSettings {
    int64_t least, shortest, longest;
    double forgetting, doubt, reading, strength, decay, prior;
};

// Threads may share it.
struct Worth {
    const WorthSettings settings;

    explicit Worth(const WorthSettings& settings, const double* seconds)
        : settings(settings), times{seconds[0], seconds[1]}, length(settings.shortest) {}

    // Whether it is asked, and what it reads computed.
    bool is_open() const { return open; }

    // Takes the gains and tables before evidence of the first text. `tables` [2], root and deeper.
    void begin(const AskingGains& fresh, const std::vector<double>* tables) {
        std::lock_guard<std::mutex> held(lock);
        if (gains) return;
        gains = std::make_unique<AskingGains>(fresh);
        for (int deep = 0; deep < 2; deep++) before[deep] = tables[deep];
        forget();
    }

    // Estimates by which a further text begins: root or deeper.
    std::vector<double> estimates(bool deep) {
        std::lock_guard<std::mutex> held(lock);
        std::vector<double> found = before[deep];
        for (size_t at = 0; at < found.size(); at++)
            found[at] = (settings.strength * found[at] + hits[deep][at]) /
                        (settings.strength + trials[deep][at]);
        return found;
    }

    void count_candidate(bool deep, int bucket, bool came) {
        std::lock_guard<std::mutex> held(lock);
        hits[deep][bucket] = hits[deep][bucket] * settings.decay + came;
        trials[deep][bucket] = trials[deep][bucket] * settings.decay + 1;
    }

    bool pays(bool deep, bool trial, double chance, double best, double price, double rate,
              double seconds) {
        std::lock_guard<std::mutex> held(lock);
        const double too_much = stated_too_high[deep] / (settings.prior + judged[deep]);
        return gains->pays(deep, trial, chance, best, price, rate, seconds, too_much);
    }

    // An answer raised the best estimate by `stated`.
    void asked(bool deep, double best, double stated) {
        std::lock_guard<std::mutex> held(lock);
        gains->learn(deep, best, stated);
    }

    // The text went on: `seen` is 1 where only the answer's best token came, -1 where only the
    // others' did, else 0.
    void judge(bool deep, double stated, int seen) {
        std::lock_guard<std::mutex> held(lock);
        stated_too_high[deep] = stated_too_high[deep] * settings.decay + stated - seen;
        judged[deep] = judged[deep] * settings.decay + 1;
    }

    // One more step, in which nothing was drafted or the source rests.
    void pass_step() {
        std::lock_guard<std::mutex> held(lock);
        if (left > 0 && --left == 0) forget(), open = true;
    }

    // One more step: `tokens` that it emitted more than it would have without the source, and those
    // that would have been emitted in the time this took.
    void count_step(double tokens, double price) {
        std::lock_guard<std::mutex> held(lock);
        if (!open || !std::isfinite(price)) return;  // it rests since this step began
        net = net * settings.forgetting + tokens - price;
        squares = squares * settings.forgetting * settings.forgetting + tokens * tokens;
        steps++;
        const double sure = settings.doubt * std::sqrt(1 + squares);  // as if one token had come
        if (steps >= settings.least && net < -sure) rest();
        else if (net > sure && steps >= 2 * settings.least) length = settings.shortest;
    }

    void seconds(double* root_and_deeper) {
        std::lock_guard<std::mutex> held(lock);
        std::copy(times, times + 2, root_and_deeper);
    }

    void timed(bool deep, double seconds) {
        std::lock_guard<std::mutex> held(lock);
        times[deep] = seconds;
    }

private:
    std::mutex lock;
    std::atomic<bool> open{true};
    std::unique_ptr<AskingGains> gains;
    std::vector<double> before[2], hits[2], trials[2];
    double times[2];  // of a question at the root and deeper
    double stated_too_high[2], judged[2];
    double net = 0, squares = 0;  // of steps since it was last left alone
    int64_t steps = 0, left = 0, length;  // `left` of the rest under way, `length` of the next one

    void rest() {
        open = false, left = length;
        length = std::min(2 * length, settings.longest);
    }

    // It may have become another one meanwhile.
    void forget() {
        gains->forget();
        for (int deep = 0; deep < 2; deep++) {
            hits[deep].assign(before[deep].size(), 0), trials[deep].assign(before[deep].size(), 0);
            stated_too_high[deep] = judged[deep] = 0;
        }
        net = squares = 0, steps = 0;
    }
};

}  // namespace draftwood

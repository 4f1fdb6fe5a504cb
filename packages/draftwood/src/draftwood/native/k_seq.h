// SpecTr's k-sequential selection on rows of probabilities: verifiers/k_seq.py.
#pragma once

#include <cmath>
#include <limits>

#include "rows.h"

namespace draftwood {

// The target's and the draft's probabilities after a node, over the target's vocabulary.
struct Selection {
    std::vector<float>& p;
    const std::vector<float>& q;
    int count;  // tests

    // By how much p covers what the tests accept.
    double slack(double rho) const {
        const double beta = std::min(covered(rho), 1.0);
        return rho * beta - (1 - std::pow(1 - beta, count));
    }

    // The smallest rho at which p covers that, from above to rounding, by false position.
    double division_factor() const {
        double low = 1, high = count, slack_low = count > 1 ? slack(low) : 0;
        if (slack_low >= 0) return low;
        double slack_high = slack(high);
        const double tolerance = 4 * (double)std::numeric_limits<float>::epsilon();
        int side = 0;
        while (high - low > tolerance * high && slack_high > tolerance) {
            const double rho = (low * slack_high - high * slack_low) / (slack_high - slack_low);
            if (!(low < rho && rho < high)) break;
            const double found = slack(rho);
            // the end that stays twice in a row is pulled in
            if (found >= 0) {
                if (side > 0) slack_low /= 2;
                high = rho, slack_high = found, side = 1;
            } else {
                if (side < 0) slack_high /= 2;
                low = rho, slack_low = found, side = -1;
            }
        }
        return high;
    }

    // p becomes what the tests do not give out, unnormalised; it stays where they can give nothing
    // or everything.
    void leave(double rho) const {
        const double beta = std::min(covered(rho), 1.0);
        if (beta == 0) return;
        const float share = (float)((1 - std::pow(1 - beta, count)) / beta),
                    divisor = (float)rho;
        double total = 0;
        for (size_t i = 0; i < p.size(); i++) total += rest(i, divisor, share);
        for (size_t i = 0; total > 0 && i < p.size(); i++) p[i] = rest(i, divisor, share);
    }

private:
    double covered(double rho) const {
        return overlap(p.data(), q.data(), (int64_t)p.size(), (float)(1 / rho));
    }

    float rest(size_t i, float divisor, float share) const {
        return std::max(p[i] - std::min(p[i] / divisor, q[i]) * share, 0.0f);
    }
};

}  // namespace draftwood

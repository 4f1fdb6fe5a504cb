// The random acts of a request that are not single draws, as rng.py has them.
#pragma once

#include <cmath>
#include <cstdint>

namespace draftwood {

// Uniform numbers in [0, 1), in the order in which `Rng` gives them.
class Uniforms {
public:
    explicit Uniforms(const double* numbers) : numbers(numbers) {}

    double next() { return numbers[taken++]; }
    double exponential() { return -std::log(1 - next()); }
    bool accept(double chance) { return next() < chance; }
    int64_t used() const { return taken; }

private:
    const double* const numbers;
    int64_t taken = 0;
};

}  // namespace draftwood

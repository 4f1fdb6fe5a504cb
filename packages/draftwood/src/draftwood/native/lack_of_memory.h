// What functions that Python calls do where the system gives no memory. Exceptions end the process
// where they leave the library.
#pragma once

#include <cstdint>
#include <new>

namespace draftwood {

// Status of a function that returns more else; functions.py raises MemoryError.
constexpr int32_t NO_MEMORY = -3;

// What act() returns.
template <class Act>
int32_t guarded(Act act) {
    try {
        return act();
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    }
}

// What make() makes; null without memory for it.
template <class Make>
auto made(Make make) -> decltype(make()) {
    try {
        return make();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

}  // namespace draftwood

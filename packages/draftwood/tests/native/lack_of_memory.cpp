// What a team does where a task finds no memory, for tests.
//
// Does three jobs of three phases with two threads. In the second job the second thread throws in
// the middle phase, and the first waits for that. Writes of each job whether memory was lacking, and how many tasks of its first and last
// phase were done.
#include <cstdio>

#include "team.h"

using namespace draftwood;

class Phases final : public Job {
public:
    static constexpr int COUNT = 3, TASKS = 40;

    std::atomic<int> done[COUNT]{};
    std::atomic<bool> thrown{false};

    explicit Phases(bool fails) : fails(fails) {}

    int phases() const override { return COUNT; }
    int tasks(int) const override { return TASKS; }

    void perform(int phase, int) override {
        if (fails && phase == 1) {
            if (own_place()) thrown = true, throw std::bad_alloc();
            while (!thrown) std::this_thread::yield();
        }
        done[phase]++;
    }

private:
    const bool fails;
};

int main() {
    Team& team = *new Team;  // which its threads may still use at the end
    for (const bool fails : {false, true, false}) {
        Phases job(fails);
        bool lacking = false;
        try {
            team.run(job, 2);
        } catch (const std::bad_alloc&) {
            lacking = true;
        }
        std::printf("%d %d %d\n", lacking, job.done[0].load(), job.done[2].load());
    }
}

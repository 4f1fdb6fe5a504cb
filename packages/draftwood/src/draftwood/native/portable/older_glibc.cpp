// Functions of older versions of glibc in the place of the newest ones, for prebuilt libraries.
//
// The linker turns every reference to NAME, those of the C++ library among them, into one to
// __wrap_NAME (its option --wrap; prebuilt.py has the list). Those here ask for the oldest version
// of a function, which every glibc since then keeps.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#define HERE extern "C" __attribute__((visibility("hidden")))
#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif
#define OLDER(Type, name, parameters, arguments)             \
    extern "C" Type older_##name parameters;                 \
    asm(".symver older_" #name "," #name "@" OLDEST);        \
    HERE Type __wrap_##name parameters;                      \
    Type __wrap_##name parameters { return older_##name arguments; }

OLDER(double, exp, (double x), (x))
OLDER(double, exp2, (double x), (x))
OLDER(double, log, (double x), (x))
OLDER(double, pow, (double x, double y), (x, y))
OLDER(int, pthread_create,
      (pthread_t * thread, const pthread_attr_t* how, void* (*run)(void*), void* given),
      (thread, how, run, given))
OLDER(int, pthread_detach, (pthread_t thread), (thread))
OLDER(int, pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex))
OLDER(int, pthread_once, (pthread_once_t * once, void (*run)()), (once, run))
OLDER(int, __pthread_key_create, (pthread_key_t * key, void (*end)(void*)), (key, end))

// Newer ones know whether there is one thread alone; atomic operations are right in any case.
HERE char __wrap___libc_single_threaded;
char __wrap___libc_single_threaded = 0;

#ifdef DLFO_STRUCT_HAS_EH_DBASE  // else the C++ library asks for no such function
namespace {

struct Asked {
    uintptr_t address;
    dl_find_object* found;
};

// Fills in what was asked for if the address lies in this object.
int look(dl_phdr_info* object, size_t, void* given) {
    const Asked& asked = *static_cast<Asked*>(given);
    bool is_here = false;
    asked.found->dlfo_eh_frame = nullptr;  // of the object before
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr)& part = object->dlpi_phdr[i];
        const uintptr_t begin = object->dlpi_addr + part.p_vaddr;
        if (part.p_type == PT_LOAD) is_here |= asked.address - begin < part.p_memsz;
        if (part.p_type == PT_GNU_EH_FRAME) asked.found->dlfo_eh_frame = (void*)begin;
    }
    return is_here;
}

}  // namespace

// Where an exception's frames lie.
HERE int __wrap__dl_find_object(void* address, dl_find_object* found);
int __wrap__dl_find_object(void* address, dl_find_object* found) {
    *found = {};
    Asked asked{(uintptr_t)address, found};
    return dl_iterate_phdr(look, &asked) && found->dlfo_eh_frame ? 0 : -1;
}
#endif

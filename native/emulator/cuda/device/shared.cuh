/* Shared memory that a launch gives its blocks, and its addresses, on the emulated device. */
#pragma once

#include <stdint.h>

#define TL_DYNAMIC_SHARED(type, name) type *const name = reinterpret_cast<type *>(emulator::dynamic_memory)

/* Variables of this library lie within 2^31 bytes of each other. */
static inline uint32_t tl_shared_address(const void *p)
{
    return (uint32_t)(static_cast<const char *>(p) - emulator::dynamic_memory);
}
static inline void *tl_shared_pointer(uint32_t address) { return emulator::dynamic_memory + (int32_t)address; }

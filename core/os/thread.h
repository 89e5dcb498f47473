// Threads, the processors that they run on, and waiting until a word in memory changes.
//
// The system's scheduler balances processors only every few milliseconds; a stage of a step lasts
// microseconds. So threads are moved here. A move leaves the set of processors that a thread may use
// unchanged. If the system offers no such moves, or while another thread of the process makes one, the
// functions that move do nothing.
#pragma once

#include <cstdint>

namespace tg::os {

using ThreadId = int;  // the system's number of a thread; 0: none
ThreadId current_thread();
int current_processor();  // -1: unknown

// The thread's processor time in seconds; negative: unknown, for example because the thread has ended.
double processor_seconds(ThreadId thread);
// Moves a thread to that processor, if it may use it.
void move_thread(ThreadId thread, int processor);
// Moves the calling thread to another processor, if it may use at least `processors` of them.
void leave_processor(int processor, int processors);

// The number of processors that the calling thread may use; at least 1.
int usable_processors();
// Lets the calling thread, and those that it starts, use only the first `count` of these processors.
void limit_processors(int count);

// Calls f in every later child of fork(), before fork() returns there. The child has only one of the parent's
// threads, the one that called fork().
void call_after_fork(void (*f)());

// Sleeps while *word == value, until wake() or `timeout_ns` nanoseconds have passed; negative: without a
// limit. May return early. If `shared`, threads of other processes that map the same memory may change and
// wake it.
void wait_while_equal(const std::uint32_t* word, std::uint32_t value, bool shared,
                      std::int64_t timeout_ns = -1);

// Wakes at most `count` threads that wait for the word. The caller has changed it before.
void wake(const std::uint32_t* word, int count, bool shared);

}  // namespace tg::os

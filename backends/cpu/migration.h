// Moves threads between processors. The system's scheduler balances processors only every few milliseconds; a
// stage of a step takes microseconds. A move leaves the set of processors that a thread may use unchanged.
// Where the system offers no such moves, or while another thread of the process makes one, the functions do
// nothing.
#pragma once

namespace tg::cpu {

using ThreadId = int;  // the system's number of a thread; 0: none
ThreadId current_thread();
int current_processor();  // -1: unknown

// The thread's processor time in seconds; negative: unknown, for example because the thread has ended.
double processor_seconds(ThreadId thread);
// Moves a thread to that processor, if it may use it.
void move_to(ThreadId thread, int processor);
// Moves the calling thread to another processor, if it may use at least `processors` of them.
void leave(int processor, int processors);

}  // namespace tg::cpu

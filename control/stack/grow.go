package stack

// What Grow leaves below its caller, in bytes. With what a goroutine's first frames use, it makes stacks of 16 KiB.
const room = 12 << 10

// Grow lets the calling goroutine go about 12 KiB deeper without its stack being copied. It is called near a goroutine's
// beginning, where there is little to copy, and costs next to nothing when the stack is large enough already.
func Grow() { take(false) }

// take has a frame of room's size, which the runtime makes place for when it is entered. The array is not touched, so
// nothing is cleared.
//
//go:noinline
func take(all bool) (sum byte) {
	if !all {
		return 0
	}
	var frame [room]byte
	for i := range frame {
		frame[i] = byte(i) + sum
		sum += frame[i/2]
	}
	return sum
}

package stack

import (
	"testing"
	"unsafe"
)

// moved reports whether a goroutine's stack is copied when it becomes deep, that is, whether what lies on it is elsewhere
// afterwards.
func moved(begin func()) bool {
	answer := make(chan bool)
	go func() {
		begin()
		var here byte
		before := uintptr(unsafe.Pointer(&here)) //nolint:gosec // compared, never followed
		deep(10)
		answer <- before != uintptr(unsafe.Pointer(&here)) //nolint:gosec // as above
	}()
	return <-answer
}

// deep goes down n KiB.
//
//go:noinline
func deep(n int) byte {
	var frame [960]byte
	for i := range frame {
		frame[i] = byte(n)
	}
	if n <= 1 {
		return frame[n]
	}
	return deep(n-1) + frame[n]
}

func TestAGrownStackIsNotCopiedDeeperDown(t *testing.T) {
	for range 100 { // goroutines that ended leave their stacks to the next ones
		if moved(Grow) {
			t.Fatal("the stack was copied after Grow")
		}
	}
}

func TestAStackThatIsNotGrownIsCopied(t *testing.T) {
	if !moved(func() {}) {
		t.Fatal("stacks are so large from the start that Grow is of no use any more")
	}
}

func BenchmarkDeep(b *testing.B) {
	for name, begin := range map[string]func(){"as it is": func() {}, "grown": Grow} {
		b.Run(name, func(b *testing.B) {
			done := make(chan struct{})
			for b.Loop() {
				go func() {
					begin()
					deep(10)
					done <- struct{}{}
				}()
				<-done
			}
		})
	}
}

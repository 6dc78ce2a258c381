package cork

import (
	"io"
	"net"
	"testing"
	"time"
)

// TestWhatIsHeldGoesOutWhenThereIsNoFrame: a stream whose window is full has frames that wait, and none that may go.
func TestWhatIsHeldGoesOutWhenThereIsNoFrame(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	c := NewConn(near)
	defer c.Close()
	s := newScheduler(c)
	c.keeps.Store(true)
	if n, err := c.Write([]byte("held")); n != 4 || err != nil { // nobody reads: it would wait if it were not held
		t.Fatal(n, err)
	}
	if _, ok := s.Pop(); ok {
		t.Fatal("a frame nobody has pushed")
	}
	if err := far.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(far, got); err != nil || string(got) != "held" {
		t.Fatalf("%q, %v", got, err)
	}
}

// TestWhatIsHeldIsNotLostAtTheEnd: closing writes it, and does not wait for a peer that does not read.
func TestWhatIsHeldIsNotLostAtTheEnd(t *testing.T) {
	for _, reads := range []bool{true, false} {
		near, far := net.Pipe()
		c := NewConn(near)
		c.keeps.Store(true)
		if _, err := c.Write([]byte("last")); err != nil {
			t.Fatal(err)
		}
		got := make(chan string, 1)
		if reads {
			go func() { b, _ := io.ReadAll(far); got <- string(b) }()
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if reads {
			if text := <-got; text != "last" {
				t.Errorf("%q", text)
			}
		}
		_ = far.Close()
	}
}

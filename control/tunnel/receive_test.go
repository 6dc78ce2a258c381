package tunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

func TestANodesReportsAreReadAsLongAsItIsConnected(t *testing.T) {
	type report struct{ node, text string }
	said := make(chan report, 3)
	w := newWorld(t, func(c *Config) {
		c.ReceiveAgain = time.Millisecond
		c.Receive = func(node string, conn net.Conn) error {
			defer conn.Close()
			text := make([]byte, 3)
			_, err := io.ReadFull(conn, text)
			select {
			case said <- report{node, string(text)}:
			default:
			}
			return err // it is asked for again
		}
	})
	stop, _ := w.node("n1", func(_ context.Context, target string) (net.Conn, error) {
		if target != "resource-metrics" {
			return nil, errors.New("no")
		}
		here, there := net.Pipe()
		go func() {
			_, _ = here.Write([]byte("abc"))
			_ = here.Close()
		}()
		return there, nil
	})
	for range 3 {
		if got := <-said; got != (report{"n1", "abc"}) {
			t.Errorf("%v", got)
		}
	}
	stop()
}

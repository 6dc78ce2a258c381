package mux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Errors of Open.
var (
	// ErrBusy means that MaxStreams streams are open.
	ErrBusy = errors.New("too many connections are carried at once")
	// ErrSilent means that the node's process does not answer, although the connection to its host is open.
	ErrSilent = errors.New("the node does not answer")
)

// Refusal is the reason of a node that did not connect a stream.
type Refusal string

// Error implements error.
func (r Refusal) Error() string { return string(r) }

// defaultPatience is how long no frame arrives before the node gets a ping, and how long its answer may take.
const defaultPatience = 3 * time.Second

// OpenerConfig configures the server's end of a connection.
type OpenerConfig struct {
	// Conn is the connection; its handshake is done.
	Conn net.Conn
	// MaxStreams bounds the open streams. Default 512.
	MaxStreams int
	// Patience is how long a node may send no frame while a stream is being opened before it gets a ping, and how long its
	// answer may take. Default 3 s.
	Patience time.Duration
}

// Opener opens streams, which the node connects to their targets. It is safe for concurrent use.
type Opener struct {
	link     *link
	most     int
	patience time.Duration
}

// NewOpener starts nothing. Calls of Open wait for Run.
func NewOpener(cfg OpenerConfig) *Opener {
	o := &Opener{link: newLink(cfg.Conn), most: cfg.MaxStreams, patience: cfg.Patience}
	o.link.writing <- struct{}{} // until Run has sent the hello
	if o.most <= 0 {
		o.most = 512
	}
	if o.patience <= 0 {
		o.patience = defaultPatience
	}
	return o
}

// Run sends the hello and reads frames until the connection ends; it returns the reason. It runs once.
func (o *Opener) Run() error {
	err := o.link.write(kindHello, 0, nil)
	<-o.link.writing
	if err != nil {
		return err
	}
	return o.link.read(o.handle)
}

func (o *Opener) handle(f frame) error {
	switch f.kind {
	case kindPong:
		return nil
	case kindOpened, kindRefused:
		return o.answered(f)
	}
	return o.link.common(f)
}

func (o *Opener) answered(f frame) error {
	s, err := o.link.find(f.stream)
	if s == nil || err != nil {
		return err
	}
	s.mu.Lock()
	again := s.opened
	s.opened = true
	s.mu.Unlock()
	if again {
		return violation("stream %d is opened twice", f.stream)
	}
	if f.kind == kindOpened {
		s.answer <- nil
		return nil
	}
	o.link.remove(f.stream)
	s.lost(Refusal(f.payload))
	s.answer <- Refusal(f.payload)
	return nil
}

// Bye sends the node a reason and ends the connection. Run must be running.
func (o *Opener) Bye(why string) {
	_ = o.link.send(nil, kindBye, 0, clip(why)) // a node that does not receive it sees the connection end
	o.link.fail(errors.New(why))
}

// Close ends the connection and all its streams, whose calls return err.
func (o *Opener) Close(err error) { o.link.fail(err) }

// Refuse sends a reason to a node that has just connected. The caller still has to close the connection.
func Refuse(conn net.Conn, why string) error { return newLink(conn).send(nil, kindBye, 0, clip(why)) }

// Streams returns the number of open streams.
func (o *Opener) Streams() int { return o.link.count() }

// Done returns a channel that is closed when the connection has ended.
func (o *Opener) Done() <-chan struct{} { return o.link.done }

// Open asks the node to connect to target and returns the stream. The node interprets the target. Errors are ErrBusy,
// ErrSilent, a Refusal, the error of ctx, or the loss of the connection.
func (o *Opener) Open(ctx context.Context, target string) (net.Conn, error) {
	if len(target) == 0 || len(target) > maxTarget {
		return nil, fmt.Errorf("mux: target of %d bytes", len(target))
	}
	s, err := o.begin(target)
	if err != nil {
		return nil, err
	}
	if err := o.link.send(ctx.Done(), kindOpen, s.id, []byte(target)); err != nil {
		s.forget()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	if err := o.await(ctx, s); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// begin returns a new stream with a number. Streams may be opened in a different order than they were numbered.
func (o *Opener) begin(target string) (*stream, error) {
	l := o.link
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return nil, errLost{l.err}
	case len(l.streams) >= o.most:
		return nil, ErrBusy
	case l.last == 1<<32-1:
		return nil, errors.New("mux: all numbers of streams are used")
	}
	l.last++
	s := newStream(l, l.last, target)
	s.answer = make(chan error, 1)
	if l.streams == nil {
		l.streams = map[uint32]*stream{}
	}
	l.streams[s.id] = s
	return s, nil
}

// await waits for the node's answer. A node from which no frame arrives gets a ping.
func (o *Opener) await(ctx context.Context, s *stream) error {
	timer := time.NewTimer(o.patience)
	defer timer.Stop()
	heard, asked := o.link.heard.Load(), false
	for {
		select {
		case err := <-s.answer:
			return err
		case <-o.link.done:
			return o.link.reason()
		case <-ctx.Done():
			return fmt.Errorf("the node did not connect to %s in time: %w", s.target, ctx.Err())
		case <-timer.C:
		}
		now := o.link.heard.Load()
		if now == heard && asked {
			o.link.fail(ErrSilent)
			return ErrSilent
		}
		if asked = now == heard; asked {
			// If ctx ends the send, the next round returns the error of ctx.
			if err := o.link.send(ctx.Done(), kindPing, 0, nil); err != nil && ctx.Err() == nil {
				return err
			}
		}
		heard = now
		timer.Reset(o.patience)
	}
}

package load

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/client-go/rest"
)

// Request is one call. Type is the media type of the body, Accept the one wanted for the answer.
type Request struct {
	Method, Path string
	Type, Accept string
	Body         []byte
}

// Conn is an HTTP/2 connection over TLS (RFC 9113) with only what benchmarks need: flow-control windows so large that
// they are rarely refilled, headers without compression tables, and answers that are passed on as they arrive. Frames
// have the size that Go's own client asks for.
type Conn struct {
	raw       net.Conn
	authority string
	out       *bufio.Writer
	frames    *http2.Framer
	headers   bytes.Buffer
	encoder   *hpack.Encoder
	decoder   *hpack.Decoder
	status    int // of the header block that is being read

	streams  map[uint32]*Stream
	next     uint32 // next stream ID; odd, because a client opens it
	may      int64  // bytes of bodies that the server accepts now
	initial  int64  // the same for a new stream
	received int    // since the connection's window was refilled
	used     time.Time
}

// Stream is one request in progress.
type Stream struct {
	Status int  // 0 until the headers of the answer arrive
	Ended  bool // the answer is complete
	id     uint32
	sink   func(data []byte) error
	fault  bytes.Buffer // the body of an error
}

const (
	hugeWindow = 1<<31 - 1
	refill     = 1 << 29
	patience   = 2 * time.Minute // for the next frame of an answer
)

// Dial connects with cfg's credentials.
func Dial(ctx context.Context, cfg *rest.Config) (*Conn, error) {
	settings, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	host, err := url.Parse(cfg.Host)
	if err != nil {
		return nil, err
	}
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	plain, err := dial(ctx, "tcp", host.Host)
	if err != nil {
		return nil, err
	}
	settings.NextProtos = []string{http2.NextProtoTLS, "http/1.1"} // as HTTP clients offer; the server takes the first
	if settings.ServerName == "" {
		settings.ServerName = host.Hostname()
	}
	raw := tls.Client(plain, settings)
	if err := raw.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, err
	}
	c := &Conn{raw: raw, authority: host.Host, out: bufio.NewWriterSize(raw, 32<<10), streams: map[uint32]*Stream{}, next: 1, may: 65535, initial: 65535, used: time.Now()}
	c.frames = http2.NewFramer(c.out, bufio.NewReaderSize(raw, 32<<10))
	c.frames.SetReuseFrames()
	c.encoder = hpack.NewEncoder(&c.headers)
	c.encoder.SetMaxDynamicTableSizeLimit(0)
	c.decoder = hpack.NewDecoder(0, func(f hpack.HeaderField) {
		if f.Name == ":status" {
			c.status, _ = strconv.Atoi(f.Value)
		}
	})
	if err := c.greet(); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// DialMany opens n connections.
func DialMany(ctx context.Context, cfg *rest.Config, n int) ([]*Conn, error) {
	out := make([]*Conn, n)
	err := Times(ctx, min(n, 8), n, func(ctx context.Context, _, i int) (err error) {
		out[i], err = Dial(ctx, cfg)
		return err
	})
	if err != nil {
		CloseAll(out)
		return nil, err
	}
	return out, nil
}

// CloseAll closes connections; some may be nil.
func CloseAll(list []*Conn) {
	for _, c := range list {
		if c != nil {
			_ = c.Close()
		}
	}
}

// Close closes the connection and ends its reader.
func (c *Conn) Close() error { return c.raw.Close() }

func (c *Conn) greet() error {
	if _, err := c.out.WriteString(http2.ClientPreface); err != nil {
		return err
	}
	err := c.frames.WriteSettings(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: hugeWindow},
	)
	if err == nil {
		err = c.frames.WriteWindowUpdate(0, hugeWindow-65535)
	}
	if err == nil {
		err = c.out.Flush()
	}
	return err
}

// Idle returns the time since the last request. An idle Conn is not read, and servers close connections that are idle
// for long.
func (c *Conn) Idle() time.Duration { return time.Since(c.used) }

// Start sends a request. The body of the answer goes to sink, which may be nil and must not keep the bytes. After an
// error the connection must not be used.
func (c *Conn) Start(r Request, sink func(data []byte) error) (*Stream, error) {
	if int64(len(r.Body)) > c.initial {
		return nil, fmt.Errorf("a body of %d bytes: this client sends no more than %d", len(r.Body), c.initial)
	}
	for c.may < int64(len(r.Body)) {
		if err := c.Step(); err != nil {
			return nil, err
		}
	}
	c.headers.Reset()
	for _, f := range [][2]string{{":method", r.Method}, {":scheme", "https"}, {":authority", c.authority}, {":path", r.Path},
		{"accept", r.Accept}, {"user-agent", "balsa-load"}, {"content-type", r.Type}} {
		if f[1] == "" || f[0] == "content-type" && r.Body == nil {
			continue
		}
		if err := c.encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return nil, err
		}
	}
	if r.Body != nil {
		if err := c.encoder.WriteField(hpack.HeaderField{Name: "content-length", Value: strconv.Itoa(len(r.Body))}); err != nil {
			return nil, err
		}
	}
	c.used = time.Now()
	s := &Stream{id: c.next, sink: sink}
	c.next += 2
	c.streams[s.id] = s
	err := c.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: s.id, BlockFragment: c.headers.Bytes(), EndHeaders: true, EndStream: r.Body == nil})
	for rest := r.Body; err == nil && len(rest) > 0; {
		n := min(len(rest), 16<<10)
		err = c.frames.WriteData(s.id, n == len(rest), rest[:n])
		rest = rest[n:]
	}
	c.may -= int64(len(r.Body))
	if err == nil {
		err = c.out.Flush()
	}
	return s, err
}

// Do sends a request and waits for the answer. An answer without a 2xx status is an error.
func (c *Conn) Do(r Request, sink func(data []byte) error) error {
	s, err := c.Start(r, sink)
	if err != nil {
		return err
	}
	for !s.Ended {
		if err := c.Step(); err != nil {
			return fmt.Errorf("%s %s: %w", r.Method, r.Path, err)
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("%s %s: %w", r.Method, r.Path, err)
	}
	return nil
}

// StatusError is an answer without a 2xx status.
type StatusError struct {
	Code int
	Text string
}

// Error implements error.
func (e *StatusError) Error() string { return fmt.Sprintf("%d: %.300s", e.Code, e.Text) }

// Err returns the answer's error, nil for a success or an unfinished answer.
func (s *Stream) Err() error {
	if s.Status == 0 || s.Status/100 == 2 {
		return nil
	}
	return &StatusError{s.Status, s.fault.String()}
}

// Cancel tells the server that the client has stopped reading a stream.
func (c *Conn) Cancel(s *Stream) error {
	delete(c.streams, s.id)
	s.Ended = true
	if err := c.frames.WriteRSTStream(s.id, http2.ErrCodeCancel); err != nil {
		return err
	}
	return c.out.Flush()
}

// Step reads and handles one frame.
func (c *Conn) Step() error {
	if err := c.raw.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	frame, err := c.frames.ReadFrame()
	if err != nil {
		return err
	}
	switch f := frame.(type) {
	case *http2.DataFrame:
		return c.data(f)
	case *http2.HeadersFrame:
		return c.head(f)
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		if err := c.frames.WritePing(true, f.Data); err != nil {
			return err
		}
		return c.out.Flush()
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			c.may += int64(f.Increment)
		}
	case *http2.RSTStreamFrame:
		if c.streams[f.StreamID] != nil {
			return fmt.Errorf("the server reset a stream: %v", f.ErrCode)
		}
	case *http2.GoAwayFrame:
		return fmt.Errorf("the server closes the connection: %v %q", f.ErrCode, f.DebugData())
	case *http2.ContinuationFrame:
		return errors.New("headers in several frames are not supported")
	}
	return nil
}

func (c *Conn) data(f *http2.DataFrame) error {
	c.received += int(f.Length)
	if c.received > refill {
		if err := c.frames.WriteWindowUpdate(0, uint32(c.received)); err != nil {
			return err
		}
		if err := c.out.Flush(); err != nil {
			return err
		}
		c.received = 0
	}
	s := c.streams[f.StreamID]
	if s == nil {
		return nil // the stream was cancelled
	}
	if s.Status/100 != 2 {
		s.fault.Write(f.Data())
	} else if s.sink != nil {
		if err := s.sink(f.Data()); err != nil {
			return err
		}
	}
	if f.StreamEnded() {
		c.end(s)
	}
	return nil
}

func (c *Conn) head(f *http2.HeadersFrame) error {
	if !f.HeadersEnded() {
		return errors.New("headers in several frames are not supported")
	}
	c.status = 0
	if _, err := c.decoder.Write(f.HeaderBlockFragment()); err != nil {
		return err
	}
	if err := c.decoder.Close(); err != nil {
		return err
	}
	s := c.streams[f.StreamID]
	if s == nil {
		return nil
	}
	if c.status != 0 { // trailers have no status
		s.Status = c.status
	}
	if f.StreamEnded() {
		c.end(s)
	}
	return nil
}

func (c *Conn) end(s *Stream) {
	delete(c.streams, s.id)
	s.Ended = true
}

func (c *Conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
		c.initial = int64(v)
	}
	if err := c.frames.WriteSettingsAck(); err != nil {
		return err
	}
	return c.out.Flush()
}

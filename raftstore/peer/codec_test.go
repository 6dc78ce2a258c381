package peer

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// fill sets every field of a value to something that is not zero. A field that a
// newer Raft has added and the codec does not know is found this way.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(0, rand.Int64N(1<<60)+1)))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1+rand.IntN(5), 5))
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(rand.Int64N(1<<62) + 1)
	case reflect.Uint8:
		v.SetUint(uint64(1 + rand.IntN(255)))
	case reflect.Uint64:
		v.SetUint(rand.Uint64() | 1)
	default:
		panic("field of kind " + v.Kind().String())
	}
}

var requests = []any{
	&raft.AppendEntriesRequest{}, &raft.RequestVoteRequest{}, &raft.RequestPreVoteRequest{},
	&raft.TimeoutNowRequest{}, &raft.InstallSnapshotRequest{},
}

var responses = []any{
	&raft.AppendEntriesResponse{}, &raft.RequestVoteResponse{}, &raft.RequestPreVoteResponse{},
	&raft.TimeoutNowResponse{}, &raft.InstallSnapshotResponse{},
}

func TestEveryFieldOfEveryMessageCrosses(t *testing.T) {
	for range 50 {
		for _, zero := range requests {
			for _, full := range []bool{true, false} {
				req := reflect.New(reflect.TypeOf(zero).Elem())
				if full {
					fill(req.Elem())
				}
				k, b, err := encodeRequest(nil, req.Interface())
				must(t, err)
				got, err := decodeRequest(k, b)
				must(t, err)
				if !reflect.DeepEqual(got, req.Interface()) {
					t.Fatalf("request:\n%+v\n%+v", req.Interface(), got)
				}
			}
		}
		for _, zero := range responses {
			resp := reflect.New(reflect.TypeOf(zero).Elem())
			fill(resp.Elem())
			b, err := encodeResponse(nil, resp.Interface())
			must(t, err)
			got := reflect.New(reflect.TypeOf(zero).Elem()).Interface()
			must(t, decodeResponse(b, got))
			if !reflect.DeepEqual(got, resp.Interface()) {
				t.Fatalf("response:\n%+v\n%+v", resp.Interface(), got)
			}
		}
	}
}

func TestTruncatedMessagesAreRefused(t *testing.T) {
	for _, zero := range requests {
		req := reflect.New(reflect.TypeOf(zero).Elem())
		fill(req.Elem())
		k, b, err := encodeRequest(nil, req.Interface())
		must(t, err)
		for n := range b {
			if _, err := decodeRequest(k, b[:n]); !errors.Is(err, ErrMalformed) {
				t.Fatalf("%T cut to %d of %d bytes: %v", zero, n, len(b), err)
			}
		}
	}
}

func TestCutKeepsAtLeastOneEntry(t *testing.T) {
	entry := func(n int) *raft.Log { return &raft.Log{Data: make([]byte, n)} }
	for _, c := range []struct {
		sizes []int
		keep  int
	}{
		{nil, 0}, {[]int{200}, 1}, {[]int{50, 50}, 2}, {[]int{50, 51}, 1}, {[]int{0, 0, 100, 1, 1}, 3}, {[]int{101, 0}, 1},
	} {
		req := &raft.AppendEntriesRequest{}
		for _, n := range c.sizes {
			req.Entries = append(req.Entries, entry(n))
		}
		truncateEntries(req, 100)
		if len(req.Entries) != c.keep {
			t.Errorf("%v: %d kept, want %d", c.sizes, len(req.Entries), c.keep)
		}
	}
}

func TestLyingFrameLengthTakesNoMemory(t *testing.T) {
	var head [frameHead]byte
	head[0] = byte(kindAppend)
	binary.BigEndian.PutUint32(head[1:], maxFrame)
	f := &frames{r: bufio.NewReader(io.MultiReader(bytes.NewReader(head[:]), bytes.NewReader(make([]byte, 100)))), conn: quiet(t)}
	if _, _, err := f.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("short frame: %v", err)
	}
	if cap(f.buf) > 2*framePiece {
		t.Errorf("100 bytes took %d", cap(f.buf))
	}
	binary.BigEndian.PutUint32(head[1:], maxFrame+1)
	f = &frames{r: bufio.NewReader(bytes.NewReader(head[:])), conn: quiet(t)}
	if _, _, err := f.next(); !errors.Is(err, ErrTooLarge) {
		t.Errorf("frame over the bound: %v", err)
	}
}

func TestLyingCountOfEntriesTakesNoMemory(t *testing.T) {
	b := putUint(putHeader(nil, raft.RPCHeader{}), 1)
	b = putUint(putBytes(b, nil), 0, 0, 0, 1<<40)
	if n := testing.AllocsPerRun(10, func() {
		if _, err := decodeRequest(kindAppend, b); !errors.Is(err, ErrMalformed) {
			t.Fatal(err)
		}
	}); n > 10 {
		t.Errorf("%v allocations", n)
	}
}

func TestHelloVerdicts(t *testing.T) {
	ours := hello{version: 3, oldest: 2, generation: 5, cluster: newID(), server: newID()}
	with := func(edit func(*hello)) hello {
		h := ours
		h.server = newID()
		edit(&h)
		return h
	}
	for _, c := range []struct {
		theirs hello
		want   verdict
		err    error
	}{
		{with(func(h *hello) {}), welcome, nil},
		{with(func(h *hello) { h.version, h.oldest = 9, 3 }), welcome, nil},
		{with(func(h *hello) { h.version, h.oldest = 2, 1 }), welcome, nil},
		{with(func(h *hello) { h.version, h.oldest = 9, 4 }), tooNew, ErrVersion},
		{with(func(h *hello) { h.version, h.oldest = 1, 1 }), tooOld, ErrVersion},
		{with(func(h *hello) { h.generation = 4 }), stale, ErrPeerStale},
		{with(func(h *hello) { h.generation = 6 }), ahead, ErrStale},
		{with(func(h *hello) { h.cluster, h.generation = newID(), 9 }), wrongCluster, ErrWrongCluster},
	} {
		v := answerHello(ours, c.theirs)
		if v != c.want || !errors.Is(refusal(v, ours, c.theirs), c.err) {
			t.Errorf("%+v: %d, %v", c.theirs, v, refusal(v, ours, c.theirs))
		}
		if back := answerHello(c.theirs, ours); back != mirror(v) {
			t.Errorf("%+v: the other side says %d, mirror %d", c.theirs, back, mirror(v))
		}
		c.theirs.verdict = v
		got, err := readHello(bytes.NewReader(c.theirs.encode()))
		if err != nil || got != c.theirs {
			t.Errorf("%+v came as %+v, %v", c.theirs, got, err)
		}
	}
}

func FuzzHello(f *testing.F) {
	f.Add(hello{version: 1, oldest: 1, generation: 1, cluster: newID(), server: newID()}.encode())
	f.Add([]byte{0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHello(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := readHello(bytes.NewReader(h.encode()))
		if err != nil || again != h {
			t.Fatalf("%+v became %+v, %v", h, again, err)
		}
	})
}

// A message is decoded with no more memory than the bytes that have arrived.
func FuzzFrames(f *testing.F) {
	one, err := endFrame(append(newFrame(nil), "message"...), kindDone)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(one, one...))
	f.Add([]byte{1, 0, 0, 0, 0, 2, 1, 0, 0, 0, 'x'})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff})
	c := quiet(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, left := &frames{r: bufio.NewReader(bytes.NewReader(b)), conn: c}, len(b)
		for {
			_, message, err := fr.next()
			if cap(fr.buf) > len(b)+2*framePiece {
				t.Fatalf("%d bytes held for %d that came", cap(fr.buf), len(b))
			}
			if err != nil {
				return
			}
			if left -= frameHead + len(message); left < 0 {
				t.Fatal("more came out than went in")
			}
		}
	})
}

func FuzzRequest(f *testing.F) {
	for _, zero := range requests {
		req := reflect.New(reflect.TypeOf(zero).Elem())
		fill(req.Elem())
		k, b, _ := encodeRequest(nil, req.Interface())
		f.Add(byte(k), b)
	}
	f.Fuzz(func(t *testing.T, k byte, b []byte) {
		req, err := decodeRequest(kind(k), b)
		if err != nil {
			return
		}
		k2, b2, err := encodeRequest(nil, req)
		if err != nil || byte(k2) != k {
			t.Fatalf("%T: %v", req, err)
		}
		again, err := decodeRequest(k2, b2)
		if err != nil || !reflect.DeepEqual(again, req) {
			t.Fatalf("%+v became %+v, %v", req, again, err)
		}
	})
}

func FuzzResponse(f *testing.F) {
	for i, zero := range responses {
		resp := reflect.New(reflect.TypeOf(zero).Elem())
		fill(resp.Elem())
		b, _ := encodeResponse(nil, resp.Interface())
		f.Add(byte(i), b)
	}
	f.Fuzz(func(t *testing.T, i byte, b []byte) {
		resp := reflect.New(reflect.TypeOf(responses[int(i)%len(responses)]).Elem()).Interface()
		_ = decodeResponse(b, resp)
	})
}

package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

var header = Header{ClusterID: strings.Repeat("c", 32), Generation: 1, Created: time.Unix(1e9, 0).UTC(), Version: "v0.1.0"}

var testKey = NewKey()

func make1(t testing.TB, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	err := Write(&out, header, testKey, []byte("cluster keys"), func(w io.Writer) (Trailer, error) {
		_, err := io.Copy(struct{ io.Writer }{w}, iotest.HalfReader(bytes.NewReader(body)))
		return Trailer{Revision: 7, Keys: 3}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestAnArchiveGivesBackWhatWentIn(t *testing.T) {
	for _, size := range []int{0, 1, maxFrame - 1, maxFrame, maxFrame + 1, 3*maxFrame + 17} {
		body := bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
		file := make1(t, body)
		a, err := NewReader(iotest.OneByteReader(bytes.NewReader(file)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(a.Open(testKey))
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%d bytes: got %d, %v", size, len(got), err)
		}
		want := Trailer{Revision: 7, Keys: 3, Bytes: a.Trailer().Bytes}
		keys, err := testKey.Open(header.ClusterID, a.Sealed())
		if a.Header().ClusterID != header.ClusterID || a.Trailer() != want || want.Bytes < int64(size) || string(keys) != "cluster keys" {
			t.Fatalf("%+v %+v %v", a.Header(), a.Trailer(), err)
		}
		if size > 10 && bytes.Contains(file, []byte("0123456789")) {
			t.Fatal("the state lies open in the file")
		}
		if h, tr, err := Peek(bytes.NewReader(file)); err != nil || tr != want || !h.Created.Equal(header.Created) {
			t.Fatalf("%+v %+v %v", h, tr, err)
		}
	}
}

func TestAnArchiveIsReadWithItsKeyAlone(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789"), 20_000)
	file := make1(t, body)
	read := func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }
	other := NewKey()
	if _, _, err := Verify(bytes.NewReader(file), &other, read); !errors.Is(err, ErrWrongKey) {
		t.Errorf("another key: %v", err)
	}
	moved := header
	moved.ClusterID = strings.Repeat("d", 32)
	a, err := NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	a.header = moved
	if err := read(a.Open(testKey)); !errors.Is(err, ErrWrongKey) {
		t.Errorf("another cluster's header: %v", err)
	}
	if h, tr, err := Verify(bytes.NewReader(file), nil, func(io.Reader) error { return errors.New("judged without a key") }); err != nil || tr.Keys != 3 || h.ClusterID != header.ClusterID {
		t.Errorf("without a key: %v", err)
	}
}

func TestChunksStayWhereTheyWere(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 3*streamChunk)
	var out bytes.Buffer
	w, err := testKey.encrypt("c", &out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	const chunk = streamChunk + gcmTag
	salt, chunks := out.Bytes()[:streamSalt], out.Bytes()[streamSalt:]
	if len(chunks) != 3*chunk {
		t.Fatalf("%d bytes", len(chunks))
	}
	one, two, three := chunks[:chunk], chunks[chunk:2*chunk], chunks[2*chunk:]
	for name, parts := range map[string][][]byte{
		"swapped": {two, one, three}, "one left out": {one, three}, "the end cut off": {one, two}, "twice": {one, two, three, three}, "none": {},
		"half a chunk": {one, two, three[:100]},
	} {
		if _, err := io.ReadAll(testKey.decrypt("c", bytes.NewReader(bytes.Join(append([][]byte{salt}, parts...), nil)))); err == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
	if got, err := io.ReadAll(iotest.OneByteReader(testKey.decrypt("c", iotest.HalfReader(&out)))); err != nil || !bytes.Equal(got, body) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// formOne is an archive of the version that did not encrypt the state.
func formOne(t testing.TB, body string) []byte {
	t.Helper()
	head, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	b.Write(binary.BigEndian.AppendUint16([]byte(magic), 1))
	for _, part := range [][]byte{head, []byte("sealed"), []byte(body)} {
		if err := writeFrame(&b, part); err != nil {
			t.Fatal(err)
		}
	}
	tail, err := json.Marshal(Trailer{Revision: 7, Keys: 3, Bytes: int64(len(body))})
	if err != nil {
		t.Fatal(err)
	}
	size := binary.BigEndian.AppendUint32(nil, uint32(len(tail)))
	b.Write(bytes.Join([][]byte{{0, 0, 0, 0}, size, tail, size}, nil))
	sum := sha256.Sum256(b.Bytes())
	return append(append(b.Bytes(), sum[:]...), endMagic...)
}

func TestArchivesOfOlderVersionsAreRead(t *testing.T) {
	file := formOne(t, "the state")
	var got []byte
	_, _, err := Verify(bytes.NewReader(file), nil, func(r io.Reader) (err error) { got, err = io.ReadAll(r); return err })
	if err != nil || string(got) != "the state" {
		t.Fatalf("%q, %v", got, err)
	}
	a, err := NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(a.Open(testKey)); err != nil || string(got) != "the state" {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestEveryFlippedOrMissingByteIsNoticed(t *testing.T) {
	file := make1(t, []byte("the state of the cluster"))
	for i := range file {
		bad := bytes.Clone(file)
		bad[i] ^= 0x10
		if _, _, err := Verify(bytes.NewReader(bad), nil, nil); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
		if _, _, err := Verify(bytes.NewReader(file[:i]), nil, nil); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut after %d: %v", i, err)
		}
	}
	if _, _, err := Verify(bytes.NewReader(append(bytes.Clone(file), 0)), nil, nil); !errors.Is(err, ErrDamaged) {
		t.Fatalf("a byte too many: %v", err)
	}
}

func TestAFailureOfTheBodyIsTheWritersFailure(t *testing.T) {
	boom := errors.New("boom")
	if err := Write(io.Discard, header, testKey, nil, func(io.Writer) (Trailer, error) { return Trailer{}, boom }); !errors.Is(err, boom) {
		t.Fatal(err)
	}
}

func TestTheRecoveryKeyOpensItsClusterAlone(t *testing.T) {
	k := NewKey()
	again, err := ParseKey(" " + k.Text() + "\n")
	if err != nil || again != k {
		t.Fatal(err)
	}
	slip := []byte(k.Text())
	slip[30] ^= 1
	for _, text := range []string{"", "balsa-recovery-1-", k.Text()[:40], string(slip), strings.ToUpper(k.Text())} {
		if _, err := ParseKey(text); !errors.Is(err, ErrKeyForm) || strings.Contains(err.Error(), k.Text()[20:40]) {
			t.Errorf("%v", err)
		}
	}
	if s := fmt.Sprintf("%v %+v %#v %s", k, k, k, k); strings.Contains(s, k.Text()[20:40]) {
		t.Error(s)
	}
	sealed, err := k.Seal("c1", []byte("keys"))
	if err != nil {
		t.Fatal(err)
	}
	if keys, err := k.Open("c1", sealed); err != nil || string(keys) != "keys" {
		t.Fatalf("%q, %v", keys, err)
	}
	for _, try := range []func() ([]byte, error){
		func() ([]byte, error) { return NewKey().Open("c1", sealed) },
		func() ([]byte, error) { return k.Open("c2", sealed) },
		func() ([]byte, error) { return k.Open("c1", sealed[:10]) },
	} {
		if _, err := try(); !errors.Is(err, ErrWrongKey) {
			t.Error(err)
		}
	}
	path := filepath.Join(t.TempDir(), "recovery.key")
	if _, err := OpenKeyFile(path, false); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	made, err := OpenKeyFile(path, true)
	if err != nil {
		t.Fatal(err)
	}
	read, err := OpenKeyFile(path, true)
	if st, _ := os.Stat(path); err != nil || read != made || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", err, st.Mode())
	}
}

func FuzzReader(f *testing.F) {
	f.Add(make1(f, []byte("body")))
	f.Add(make1(f, nil))
	f.Add(formOne(f, "body"))
	f.Add([]byte(magic + "\x00\x01\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, err := Verify(bytes.NewReader(data), nil, nil)
		_, _, _ = Verify(bytes.NewReader(data), &testKey, func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err })
		if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
			t.Fatal(err)
		}
		_, _, _ = Peek(bytes.NewReader(data))
	})
}

func FuzzKey(f *testing.F) {
	f.Add(NewKey().Text())
	f.Fuzz(func(t *testing.T, text string) {
		if k, err := ParseKey(text); err == nil && k.Text() != strings.TrimSpace(text) {
			t.Fatal("another key")
		}
	})
}

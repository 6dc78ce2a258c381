package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

const (
	subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	// headerLen is the length of a netlink message's header and of netfilter's behind it.
	headerLen, genLen = unix.NLMSG_HDRLEN, 4
	attrLen           = 4
	kindMask          = 0x3fff // without NLA_F_NESTED and NLA_F_NET_BYTEORDER
)

// wire builds netlink messages one behind the other.
type wire struct {
	buf   []byte
	seq   uint32
	start int // of the message being built
}

// message begins a message of nftables.
func (w *wire) message(family Family, kind, flags uint16) {
	w.raw(subsystem|kind, flags, byte(family), 0)
}

func (w *wire) raw(kind, flags uint16, family byte, resource uint16) {
	w.finish()
	w.start = len(w.buf)
	w.seq++
	w.buf = binary.NativeEndian.AppendUint32(w.buf, 0)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, unix.NLM_F_REQUEST|flags)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, w.seq)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, 0)
	w.buf = append(w.buf, family, 0)
	w.buf = binary.BigEndian.AppendUint16(w.buf, resource)
}

// finish completes the message being built.
func (w *wire) finish() {
	if len(w.buf) > w.start {
		binary.NativeEndian.PutUint32(w.buf[w.start:], uint32(len(w.buf)-w.start))
	}
	w.start = len(w.buf)
}

func (w *wire) attr(kind uint16, value []byte) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(attrLen+len(value)))
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind)
	w.buf = append(w.buf, value...)
	w.pad()
}

func (w *wire) pad() {
	for len(w.buf)%4 != 0 {
		w.buf = append(w.buf, 0)
	}
}

func (w *wire) text(kind uint16, s string) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(attrLen+len(s)+1))
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind)
	w.buf = append(append(w.buf, s...), 0)
	w.pad()
}

func (w *wire) u32(kind uint16, v uint32) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, attrLen+4)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind)
	w.buf = binary.BigEndian.AppendUint32(w.buf, v)
}

func (w *wire) u64(kind uint16, v uint64) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, attrLen+8)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind)
	w.buf = binary.BigEndian.AppendUint64(w.buf, v)
}

// nest begins an attribute that is made of attributes. It returns where, for unnest, which ends it.
func (w *wire) nest(kind uint16) int {
	at := len(w.buf)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, 0)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind|unix.NLA_F_NESTED)
	return at
}

func (w *wire) unnest(at int) {
	binary.NativeEndian.PutUint16(w.buf[at:], uint16(len(w.buf)-at))
}

// attributes calls fn for each attribute, until fn returns false or the rest of data is no attribute.
func attributes(data []byte, fn func(kind uint16, value []byte) bool) {
	for len(data) >= attrLen {
		size := int(binary.NativeEndian.Uint16(data))
		if size < attrLen || size > len(data) {
			return
		}
		if !fn(binary.NativeEndian.Uint16(data[2:])&kindMask, data[attrLen:size]) {
			return
		}
		data = data[min((size+3)&^3, len(data)):]
	}
}

// find returns the attribute of that kind, nil if there is none.
func find(data []byte, kind uint16) (value []byte) {
	attributes(data, func(k uint16, v []byte) bool {
		if k == kind {
			value = v
		}
		return value == nil
	})
	return value
}

func findText(data []byte, kind uint16) string { return cString(find(data, kind)) }

func cString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

func findU32(data []byte, kind uint16) uint32 {
	if v := find(data, kind); len(v) == 4 {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

// messages calls fn for each message in data, which a socket received; body is the message behind the netlink header.
func messages(data []byte, fn func(h header, body []byte) error) error {
	for len(data) >= headerLen {
		size := int(binary.NativeEndian.Uint32(data))
		if size < headerLen || size > len(data) {
			return nil
		}
		h := header{
			kind: binary.NativeEndian.Uint16(data[4:]), flags: binary.NativeEndian.Uint16(data[6:]),
			seq: binary.NativeEndian.Uint32(data[8:]), port: binary.NativeEndian.Uint32(data[12:]),
		}
		if err := fn(h, data[headerLen:size]); err != nil {
			return err
		}
		data = data[min((size+3)&^3, len(data)):]
	}
	return nil
}

// header is the header of a netlink message, without its length.
type header struct {
	kind, flags uint16
	seq, port   uint32
}

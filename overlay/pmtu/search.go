package pmtu

import "time"

// sizes are the common path MTUs, in bytes of a packet with all headers: those of links, and of links less the headers of
// tunnels of several kinds.
var sizes = []int{floor, 1006, 1200, 1280, 1300, 1320, 1330, 1350, 1370, 1380, 1390, 1400, 1410, 1420, 1430, 1438, 1440, 1446,
	1450, 1454, 1456, 1458, 1460, 1462, 1464, 1468, 1472, 1476, 1480, 1484, 1488, 1492, 1496, 1500, 2000, 2304, 3000, 4000, 4352,
	6000, 8000, 8500, 8750, 8900, 8950, 8980, 9000, 16000, 32000}

const (
	// floor is the size that every IPv4 host must accept (RFC 1122, 3.3.2); no smaller one is tried.
	floor = 576
	// A size counts as too large after tries probes without an answer. The first probe waits firstWait for its answer, and
	// each further one twice as long as the one before.
	tries     = 3
	firstWait = 200 * time.Millisecond
)

// search looks for the largest size that is answered. It has no clock: its methods change which size to try next.
type search struct {
	passed int // the largest size that was answered; 0: none yet
	limit  int // the largest size that is tried
	likely int // an extra candidate beside sizes: the link's MTU, or the MTU that a router reported
	size   int // being tried; 0: the search is over
	tried  int // how often
}

// newSearch begins with a size that should pass; limit is the link's MTU.
func newSearch(size, limit int) search { return search{limit: limit, likely: limit, size: size} }

// wait returns how long to wait for an answer to the current try.
func (s *search) wait() time.Duration { return firstWait << (s.tried - 1) }

// answered notes that the size being tried was answered.
func (s *search) answered() {
	s.passed = s.size
	s.next()
}

// lost records that the probe being tried was not answered in time. told is the path MTU that the kernel knows; 0: none.
// With sure, the size counts as too large without further tries.
func (s *search) lost(told int, sure bool) {
	switch {
	case told >= floor && told < s.size:
		s.limit, s.likely, s.size, s.tried = told, told, told, 0
	case !sure && s.tried < tries:
	case s.passed > 0:
		s.limit = s.size - 1
		s.next()
	case s.size > floor: // first find out whether the peer answers at all; before that, a loss tells nothing about the size
		s.size, s.tried = floor, 0
	default:
		s.size = 0
	}
}

// next chooses the middle of the remaining sizes.
func (s *search) next() {
	s.tried = 0
	var left []int
	for _, size := range sizes {
		if size > s.passed && size <= s.limit && size != s.likely {
			left = append(left, size)
		}
	}
	if s.likely > s.passed && s.likely <= s.limit {
		left = append(left, s.likely)
	}
	s.size = 0
	if len(left) > 0 {
		s.size = left[len(left)/2]
	}
}

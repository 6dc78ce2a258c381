package job

import (
	"sort"
	"strconv"
	"strings"
)

// indexes is a set of completion indexes. As text it is a list of numbers and ranges, such as 1,3-5,7.
type indexes map[int]bool

// parseIndexes reads the text form and drops what is malformed or not below limit.
func parseIndexes(s string, limit int) indexes {
	out := indexes{}
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(to); err != nil {
				continue
			}
		}
		for i := max(first, 0); i <= last && i < limit; i++ {
			out[i] = true
		}
	}
	return out
}

func (x indexes) sorted() []int {
	out := make([]int, 0, len(x))
	for i := range x {
		out = append(out, i)
	}
	sort.Ints(out)
	return out
}

func (x indexes) String() string {
	var b strings.Builder
	all := x.sorted()
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1] == all[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(all[i]))
		switch {
		case j == i+1:
			b.WriteString("," + strconv.Itoa(all[j]))
		case j > i+1:
			b.WriteString("-" + strconv.Itoa(all[j]))
		}
		i = j + 1
	}
	return b.String()
}

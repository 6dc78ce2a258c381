package seeds

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// documents is the directory of the documents, for whoever has them: the test then compares the fences below with them.
var documents = flag.String("documents", "", "directory of the five documents")

// span are lines of a document, first and last.
type span struct{ from, to int }

// fences are the lines between ``` in each document.
var fences = [][]span{
	0: {{8, 8}, {167, 179}, {294, 308}},
	1: {{20, 20}, {202, 224}, {230, 230}, {236, 243}, {261, 284}, {298, 320}, {330, 341}, {377, 386}, {406, 422}, {514, 547}, {573, 607}, {619, 627}, {637, 656}, {666, 674},
		{729, 733}, {851, 873}, {881, 901}, {919, 923}, {945, 947}, {967, 977}, {983, 989}, {1019, 1025}, {1035, 1040}, {1062, 1076}, {1084, 1113}},
	2: {},
	3: {},
	4: {{101, 159}, {189, 194}, {201, 207}, {268, 279}},
}

// inline are the lines of text that print a command or a flag.
var inline = [][]int{
	0: {52, 54, 64, 74, 75, 78, 91, 94, 184, 250, 269},
	1: {679, 680, 681, 682, 934, 936},
	2: {2},
	3: {24, 82, 84},
	4: {27, 266},
}

// TestEveryPrintedLineHasARow: the rows cover all fenced lines and all lines that print a command or a flag, in order.
func TestEveryPrintedLineHasARow(t *testing.T) {
	covered := func(document, line int) bool {
		return slices.ContainsFunc(rows, func(r row) bool { return r.document == document && r.from <= line && line <= r.to })
	}
	for document, list := range fences {
		for _, s := range list {
			for line := s.from; line <= s.to; line++ {
				if !covered(document, line) {
					t.Errorf("document %d, line %d: no row", document, line)
				}
			}
		}
	}
	for document, list := range inline {
		for _, line := range list {
			if !covered(document, line) {
				t.Errorf("document %d, line %d: no row", document, line)
			}
		}
	}
	if !slices.IsSortedFunc(rows, func(a, b row) int { return (a.document-b.document)*10000 + a.from - b.from }) {
		t.Error("the rows are not in the documents' order")
	}
	for _, r := range rows {
		if r.what == "" || r.to < r.from || r.run == nil && r.why == "" {
			t.Errorf("document %d, line %d: a row needs a name and, when it does not run, a reason", r.document, r.from)
		}
	}
	if *documents == "" {
		return
	}
	found, err := readFences(*documents)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(found) != fmt.Sprint(fences) {
		t.Errorf("the documents' fenced lines are %v", found)
	}
}

// readFences finds the fenced lines of the documents, which are in the order of their names.
func readFences(dir string) (out [][]span, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		list, open := []span{}, 0
		for i, line := range strings.Split(string(text), "\n") {
			switch fence := strings.HasPrefix(strings.TrimSpace(line), "```"); {
			case fence && open == 0:
				open = i + 2
			case fence:
				list, open = append(list, span{open, i}), 0
			}
		}
		out = append(out, list)
	}
	return out, nil
}

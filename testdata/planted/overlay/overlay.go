package overlay

import (
	"log/slog"
	"sync"

	"github.com/balsahq/balsa/fault"
	_ "github.com/balsahq/balsa/node"
)

func launch(wg *sync.WaitGroup, informer interface{ AddEventHandler(any) }, work func()) {
	go work()
	wg.Go(work)
	informer.AddEventHandler(work)
	go fault.Contained("overlay", work)()
	wg.Go(func() { _ = fault.Do("overlay", work) })
}

func logs(logger *slog.Logger, err error) {
	logger.Warn("node is gone", "err", err, "error", err)
	logger.With("Pod", "p").Info("pod is gone", "node", "n", "how long", 1)
	logger.Info("pod is gone", slog.String("pod-name", "p"), "took", 1)
}

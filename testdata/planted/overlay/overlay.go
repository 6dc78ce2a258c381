package overlay

import (
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

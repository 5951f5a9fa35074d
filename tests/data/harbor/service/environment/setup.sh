#!/bin/bash
# Ready a moment later, so that the health check has something to wait for.
(sleep 0.5; touch /app/ready) > /dev/null 2>&1 &
